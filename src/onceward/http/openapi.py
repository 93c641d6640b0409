"""OpenAPI documentation of what the middleware adds: the key header, the replay header and problem responses.

    document_idempotency(app)        # FastAPI: shown in /openapi.json, /docs and /redoc from now on
    describe(document)               # any OpenAPI 3 document; returns a new one

Declarations of the application are never replaced: its own 422, its headers and its descriptions stay, and ours are
added to them. Describing a document twice changes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from onceward.errors import InvalidOption, NotGuarded
from onceward.http import openapi_refusals as refusals
from onceward.http.asgi_types import Receive, Send
from onceward.http.keyed.operation import LIFESPAN_KEY
from onceward.http.keyed.profiles import profile_options
from onceward.http.keyed.rules import PathRules, Rule, rule_on
from onceward.http.middleware.coverage import check_guarded_inside
from onceward.http.middleware.handler_lookup import flat
from onceward.http.problem_formats import ProblemFormat
from onceward.http.request.key_source import FirstOf, KeySource
from onceward.http.stored.policy import keeps_status, keeps_success

# Parsed JSON.
Json = dict[str, Any]
RuleOf = Callable[[str, str], Rule | None]

REPLAY_HEADER = "Idempotent-Replayed"

_EXTENSION = "x-idempotency"
_METHODS = ("POST", "PUT", "PATCH")
_EVERYWHERE = ("/",)

PROBLEM_SCHEMA: Json = {
    "title": "Problem",
    "description": "A problem (RFC 9457). Programs read `code`.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "description": "A URN that identifies the kind of problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "A sentence that says what happened."},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "The errors, one for each field.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "retry_after": {"type": "integer", "description": "Seconds to wait, as in the Retry-After header."},
    },
}
# The second name is for applications that have a schema named Problem.
_PROBLEM_NAMES = ("Problem", "IdempotencyProblem")

_KEY_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
_KEY_TEXT = (
    "Makes the request safe to retry: with the same key it is carried out once, and a retry gets the first response. "
    "Choose a new key, such as a UUID, for each new request, and send the same key with every retry."
)
_REPLAYED: Json = {
    "description": "`true` if this is the response to an earlier request with the same key.",
    "schema": {"type": "string", "enum": ["true"]},
}


class DescribedOptions(TypedDict, total=False):
    """Options of the middleware that change what clients see; see `Rule`."""

    key: KeySource
    compare: str
    scope: str
    problem: ProblemFormat | str
    echo: bool
    after_retention: str
    max_keys_per_principal: int
    profile: str


def describe(
    document: Mapping[str, Any],
    *,
    methods: Sequence[str] = _METHODS,
    paths: Sequence[str] = _EVERYWHERE,
    required: bool = False,
    rules: Mapping[str, Rule] | None = None,
    keep_status: Callable[[int], bool] = keeps_status,
    **options: Unpack[DescribedOptions],
) -> Json:
    """Describe in an OpenAPI document what the middleware adds.

    Give it the same options as the middleware.

    Args:
        document: An OpenAPI 3 document. It is not changed.
        methods: The methods that the middleware checks.
        paths: The beginnings of the paths that the middleware checks.
        required: Whether a request without a key is refused.
        rules: Rules by path. Rules that are declared on handlers are not known here.
        keep_status: Returns whether a response with this status is stored, and so may be replayed.
        options: Further options of the middleware: `key`, `compare`, `scope`, `problem`, `echo`, `after_retention`,
            `max_keys_per_principal`, `profile`.

    Returns:
        A new document with the key header, the replay header and the problem responses.

    Raises:
        InvalidOption: The document is not OpenAPI 3, it has other schemas with our names, or an option is invalid.
    """
    methods = _methods(methods, options)
    return _describe(document, methods, paths, _default(required, options), _by_path(rules), keep_status)


def document_idempotency(
    app: Any,
    *,
    methods: Sequence[str] = _METHODS,
    paths: Sequence[str] = _EVERYWHERE,
    required: bool = False,
    rules: Mapping[str, Rule] | None = None,
    keep_status: Callable[[int], bool] = keeps_status,
    **options: Unpack[DescribedOptions],
) -> None:
    """Describe in the OpenAPI document of a FastAPI application what the middleware adds.

    Give it the same options as the middleware. Mounted applications have separate documents. When the application
    starts, `check_guarded` refuses handlers whose rules no middleware enforces.

    Args:
        app: A FastAPI application.
        methods: The methods that the middleware checks.
        paths: The beginnings of the paths that the middleware checks.
        required: Whether a request without a key is refused.
        rules: Rules by path. A rule that is declared on a handler takes precedence.
        keep_status: Returns whether a response with this status is stored, and so may be replayed.
        options: Further options of the middleware: `key`, `compare`, `scope`, `problem`, `echo`, `after_retention`,
            `max_keys_per_principal`, `profile`.

    Raises:
        InvalidOption: `app` is not a FastAPI application, or `rules` is not a dict of rules by path.
    """
    plain = getattr(app, "openapi", None)
    if not callable(plain) or not hasattr(app, "routes"):
        raise InvalidOption(
            f"document_idempotency needs a FastAPI application, got {type(app).__name__}; for any other, use "
            "describe(document)"
        )
    by_path, default, checked = _by_path(rules), _default(required, options), _methods(methods, options)
    source: Json | None = None
    described: Json = {}

    def openapi() -> Json:
        # FastAPI caches its document and returns the same object until its routes change.
        nonlocal source, described
        document: Json = plain()
        if document is not source:
            declared = _declared(app.routes)
            described = _describe(
                document,
                checked,
                paths,
                default,
                lambda method, path: declared.get((method, path)) or by_path(method, path),
                keep_status,
            )
            source = document
        return described

    app.openapi = openapi
    _check_at_startup(app)


def _check_at_startup(app: Any) -> None:
    """Refuse to start with unguarded handlers. A middleware around the application is listed in the lifespan scope."""
    plain = app.router.lifespan
    if getattr(plain, "checks_guarded", False):
        return

    async def lifespan(scope: Any, receive: Receive, send: Send) -> None:
        try:
            check_guarded_inside(app, scope.get(LIFESPAN_KEY, ()))
        except NotGuarded as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await plain(scope, receive, send)

    lifespan.checks_guarded = True  # type: ignore[attr-defined]  # a mark on the function
    app.router.lifespan = lifespan


def _methods(methods: Sequence[str], options: DescribedOptions) -> Sequence[str]:
    """Return the methods that the middleware checks. A profile may have its own, if none are given."""
    if methods is not _METHODS or "profile" not in options:
        return methods
    found: Sequence[str] = profile_options(options["profile"]).get("methods", methods)
    return found


def _default(required: bool, options: DescribedOptions) -> Rule:
    """Return the rule of routes that declare none."""
    own = Rule(required=required or None, **options)
    return own.over(Rule(required=False, store=True, compare="bytes", scope="principal", after_retention="run"))


def _by_path(rules: Mapping[str, Rule] | None) -> RuleOf:
    known = PathRules(rules or {})
    return lambda _method, path: known.find(path)


def _declared(routes: Iterable[Any]) -> dict[tuple[str, str], Rule]:
    """Return the rules declared on handlers, by method and by path as written in the document."""
    return {
        (method, route.path_format): rule
        for route in flat(routes)
        if (rule := rule_on(getattr(route, "endpoint", None))) is not None
        for method in getattr(route, "methods", None) or ()
    }


def _describe(
    document: Mapping[str, Any],
    methods: Sequence[str],
    paths: Sequence[str],
    default: Rule,
    rule_of: RuleOf,
    keep_status: Callable[[int], bool],
) -> Json:
    if not str(document.get("openapi", "")).startswith("3."):
        raise InvalidOption(f"the document must be OpenAPI 3, got version {document.get('openapi')!r}")
    if isinstance(methods, str) or isinstance(paths, str):
        raise InvalidOption("methods= and paths= must be lists, even with one item")
    result: Json = copy.deepcopy(dict(document))
    operations = [
        (item, item[method.lower()], (rule_of(method.upper(), path) or default).over(default))
        for path, item in (result.get("paths") or {}).items()
        if path.startswith(tuple(paths))
        for method in methods
        if method.lower() in item
    ]
    if operations:
        schema = {"$ref": f"#/components/schemas/{_problem_name(result)}"}
        for item, operation, rule in operations:
            _add_keys(result, item, operation, rule)
            keeps = keep_status if rule.webhook is None else keeps_success
            _add_responses(result, operation, rule, schema, keeps if rule.store else lambda _status: False)
            if more := refusals.options_of(rule):
                operation[_EXTENSION] = more
    return result


def _problem_name(document: Json) -> str:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    name = next((name for name in _PROBLEM_NAMES if schemas.get(name, PROBLEM_SCHEMA) == PROBLEM_SCHEMA), None)
    if name is None:
        raise InvalidOption(
            f"the document already has its own schemas named {' and '.join(_PROBLEM_NAMES)}; rename one of them"
        )
    schemas[name] = copy.deepcopy(PROBLEM_SCHEMA)
    return name


def _add_keys(document: Json, item: Json, operation: Json, rule: Rule) -> None:
    """Add the parameters that carry the key. A key in the body is described by the extension only."""
    parameters = refusals.parameters_of(rule.source)
    single = rule.source is None or not isinstance(rule.source, FirstOf)
    for place, name in parameters or ():
        _add_key(document, item, operation, place, name, required=bool(rule.required) and single)


def _add_key(document: Json, item: Json, operation: Json, place: str, name: str, *, required: bool) -> None:
    """Add the parameter. If the handler declares it itself, only make it required where it must be."""
    parameters = operation.get("parameters", [])
    for parameter in (*parameters, *item.get("parameters", ())):
        declared = _resolved(document, parameter)
        if declared.get("in") == place and str(declared.get("name")).lower() == name.lower():
            if required and not declared.get("required"):
                others = [other for other in parameters if other is not parameter]
                operation["parameters"] = [*others, {**copy.deepcopy(declared), "required": True}]
            return
    operation.setdefault("parameters", []).append(
        {
            "name": name,
            "in": place,
            "required": required,
            "description": _KEY_TEXT,
            "schema": dict(_KEY_SCHEMA),
        }
    )


def _add_responses(
    document: Json, operation: Json, rule: Rule, schema: Json, keep_status: Callable[[int], bool]
) -> None:
    responses = operation.setdefault("responses", {})
    ours_by_status = refusals.refusals_of(rule, schema)
    for status, response in responses.items():
        if response == ours_by_status.get(status):
            continue  # we added it earlier; it does not tell which statuses the application sends
        headers = {REPLAY_HEADER: _REPLAYED} if _may_be_stored(status, keep_status) else {}
        if rule.echo:
            headers[refusals.KEY_HEADER] = refusals.ECHO
        if headers:
            responses[status] = _own_copy(document, response, {"headers": headers})
    for status, ours in ours_by_status.items():
        if status not in responses:
            responses[status] = ours
        elif responses[status] != ours:
            response = responses[status] = _own_copy(document, responses[status], ours)
            text, description = ours["description"], response.get("description", "")
            if text not in description and "$ref" not in response:
                response["description"] = f"{description.rstrip('. ')}. {text}" if description else text


def _own_copy(document: Json, response: Json, more: Json) -> Json:
    """Return a copy of the response with the headers and contents that it lacks.

    A reference to a component becomes a copy of it. A reference to another document stays as it is.
    """
    own: Json = copy.deepcopy(_resolved(document, response))
    if "$ref" in own:
        return own
    for part in ("headers", "content"):
        present = own.get(part) or {}
        names = {name.lower() for name in present}
        missing = {name: value for name, value in more.get(part, {}).items() if name.lower() not in names}
        if missing:
            own[part] = {**present, **copy.deepcopy(missing)}
    return own


def _may_be_stored(status: str, keep_status: Callable[[int], bool]) -> bool:
    """Return whether a response may be stored. Statuses are written as `201`, `2XX`, or `default` for all others."""
    if status == "default":
        return any(map(keep_status, range(200, 600)))
    if status.upper().endswith("XX"):
        return any(keep_status(int(status[0]) * 100 + rest) for rest in range(100))
    return status.isdecimal() and keep_status(int(status))


def _resolved(document: Json, value: Json) -> Json:
    """Resolve a reference inside the document. Return any other reference, and one to nothing, unchanged."""
    reference = value.get("$ref", "")
    if not reference.startswith("#/"):
        return value
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return value
    # From OpenAPI 3.1 on, a reference may have fields of its own beside `$ref`.
    return {**found, **{name: own for name, own in value.items() if name != "$ref"}}
