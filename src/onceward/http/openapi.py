"""What the middleware adds to an API, in its OpenAPI document: the key header, the marker of replays, problem answers.

    document_idempotency(app)        # FastAPI: /openapi.json, /docs and /redoc show it from now on
    describe(document)               # any OpenAPI 3 document, as a new one

What the application declared itself is never replaced. Its own 422 stays beside ours, and so do its headers and its
description of each answer. Describing a document twice changes nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from onceward.core.response import keeps_status
from onceward.errors import InvalidOption, NotGuarded
from onceward.http import problem
from onceward.http.coverage import check_guarded_inside
from onceward.http.operation import LIFESPAN_KEY
from onceward.http.problem import Answer
from onceward.http.routes import flat
from onceward.http.rules import PathRules, Rule, rule_on
from onceward.http.wire import Receive, Send

# JSON as it comes out of a parser.
Json = dict[str, Any]
RuleOf = Callable[[str, str], Rule | None]

KEY_HEADER = "Idempotency-Key"
REPLAY_HEADER = "Idempotent-Replayed"
PROBLEM_MEDIA_TYPE = "application/problem+json"

_METHODS = ("POST", "PUT", "PATCH")
_EVERYWHERE = ("/",)

PROBLEM_SCHEMA: Json = {
    "title": "Problem",
    "description": "What went wrong, as RFC 9457 has it. Programs look at `code`.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "description": "A URN that names the kind of problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened, in a sentence."},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "What is wrong, field by field.",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "retry_after": {"type": "integer", "description": "Seconds to wait, as in the Retry-After header."},
    },
}
# The second is for applications that have a Problem of their own.
_PROBLEM_NAMES = ("Problem", "IdempotencyProblem")

_KEY_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
_KEY_TEXT = (
    "Makes the request safe to retry: with the same key it is carried out once, and a retry gets the first answer again. "
    "Choose a new key, such as a UUID, for each new request, and send the same one with every retry."
)
_REPLAYED: Json = {
    "description": "Sent with `true` when this is the answer of an earlier request with the same key.",
    "schema": {"type": "string", "enum": ["true"]},
}
_RETRY_AFTER: Json = {
    "description": "Seconds to wait before a retry with the same key.",
    "schema": {"type": "integer", "minimum": 1},
}

# What each status means when it is ours, the answers it is sent with, and whether it may carry Retry-After.
_PROBLEMS: dict[str, tuple[str, tuple[Answer, ...], bool]] = {
    "400": ("The idempotency key is malformed, or missing where it is required.", (), False),
    "409": (
        "A request with this idempotency key is being processed (with Retry-After), in doubt, not kept, or had other cookies.",
        (problem.busy(), problem.in_doubt(), problem.not_kept(), problem.principal_changed()),
        True,
    ),
    "413": ("The body is too large for a request with an idempotency key.", (), False),
    "422": ("The idempotency key was already used with a different request.", (problem.mismatch(),), False),
    "503": ("The store of idempotency keys does not answer.", (problem.unavailable(),), True),
}


def describe(
    document: Mapping[str, Any],
    *,
    methods: Sequence[str] = _METHODS,
    paths: Sequence[str] = _EVERYWHERE,
    required: bool = False,
    rules: Mapping[str, Rule] | None = None,
    keep_status: Callable[[int], bool] = keeps_status,
) -> Json:
    """The document with what the middleware adds, given the middleware's own options. The one passed in is not changed."""
    return _describe(document, methods, paths, required, _by_path(rules), keep_status)


def document_idempotency(
    app: Any,
    *,
    methods: Sequence[str] = _METHODS,
    paths: Sequence[str] = _EVERYWHERE,
    required: bool = False,
    rules: Mapping[str, Rule] | None = None,
    keep_status: Callable[[int], bool] = keeps_status,
) -> None:
    """Let a FastAPI application's document say what the middleware adds, given the middleware's own options.

    A rule beside a handler counts before one in `rules`. Mounted applications have documents of their own. When the
    application starts, `check_guarded` refuses handlers whose rules no middleware enforces.
    """
    plain = getattr(app, "openapi", None)
    if not callable(plain) or not hasattr(app, "routes"):
        raise InvalidOption("document_idempotency takes a FastAPI application; describe(document) takes any document")
    by_path = _by_path(rules)
    source: Json | None = None
    described: Json = {}

    def openapi() -> Json:
        # FastAPI keeps its document and hands out the same one until its routes change.
        nonlocal source, described
        document: Json = plain()
        if document is not source:
            declared = _declared(app.routes)
            described = _describe(
                document,
                methods,
                paths,
                required,
                lambda method, path: declared.get((method, path)) or by_path(method, path),
                keep_status,
            )
            source = document
        return described

    app.openapi = openapi
    _check_at_startup(app)


def _check_at_startup(app: Any) -> None:
    """Refuse to start with handlers that nothing guards. A middleware around the application names itself in the scope."""
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

    lifespan.checks_guarded = True  # type: ignore[attr-defined]  # a function may carry what it does
    app.router.lifespan = lifespan


def _by_path(rules: Mapping[str, Rule] | None) -> RuleOf:
    known = PathRules(rules or {})
    return lambda _method, path: known.find(path)


def _declared(routes: Iterable[Any]) -> dict[tuple[str, str], Rule]:
    """The rules beside the handlers, by method and path as the document writes it."""
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
    required: bool,
    rule_of: RuleOf,
    keep_status: Callable[[int], bool],
) -> Json:
    if not str(document.get("openapi", "")).startswith("3."):
        raise InvalidOption(f"only OpenAPI 3 documents can be described, not {document.get('openapi')!r}")
    if isinstance(methods, str) or isinstance(paths, str):
        raise InvalidOption("methods= and paths= are lists, even of one")
    result: Json = copy.deepcopy(dict(document))
    default = Rule(required=required, store=True)
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
            _add_key(result, item, operation, bool(rule.required))
            _add_answers(result, operation, schema, keep_status if rule.store else lambda _status: False)
    return result


def _problem_name(document: Json) -> str:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    name = next((name for name in _PROBLEM_NAMES if schemas.get(name, PROBLEM_SCHEMA) == PROBLEM_SCHEMA), None)
    if name is None:
        raise InvalidOption(f"the document already has other schemas named {' and '.join(_PROBLEM_NAMES)}; rename one")
    schemas[name] = copy.deepcopy(PROBLEM_SCHEMA)
    return name


def _add_key(document: Json, item: Json, operation: Json, required: bool) -> None:
    """A handler that reads the header itself has declared it; that stays as it is, but for being required."""
    parameters = operation.get("parameters", [])
    for parameter in (*parameters, *item.get("parameters", ())):
        declared = _resolved(document, parameter)
        if declared.get("in") == "header" and str(declared.get("name")).lower() == KEY_HEADER.lower():
            if required and not declared.get("required"):
                others = [other for other in parameters if other is not parameter]
                operation["parameters"] = [*others, {**copy.deepcopy(declared), "required": True}]
            return
    operation.setdefault("parameters", []).append(
        {
            "name": KEY_HEADER,
            "in": "header",
            "required": required,
            "description": _KEY_TEXT,
            "schema": dict(_KEY_SCHEMA),
        }
    )


def _add_answers(document: Json, operation: Json, schema: Json, keep_status: Callable[[int], bool]) -> None:
    responses = operation.setdefault("responses", {})
    for status, response in responses.items():
        # One that is ours from an earlier description says nothing of what the application keeps.
        if _may_be_kept(status, keep_status) and response != _ours(status, schema):
            responses[status] = _own_copy(document, response, {"headers": {REPLAY_HEADER: _REPLAYED}})
    for status, (text, _, _) in _PROBLEMS.items():
        ours = _ours(status, schema)
        if status not in responses:
            responses[status] = ours
        elif responses[status] != ours:
            response = responses[status] = _own_copy(document, responses[status], ours)
            said = response.get("description", "")
            if text not in said and "$ref" not in response:
                response["description"] = f"{said.rstrip('. ')}. {text}" if said else text


def _ours(status: str, schema: Json) -> Json:
    """A problem answer as we describe it; what the application's own is filled up from."""
    if status not in _PROBLEMS:
        return {}
    text, answers, retry_after = _PROBLEMS[status]
    content: Json = {"schema": dict(schema)}
    if answers:
        bodies = [json.loads(answer.body) for answer in answers]
        content["examples"] = {body["code"]: {"value": body} for body in bodies}
    response: Json = {"description": text, "content": {PROBLEM_MEDIA_TYPE: content}}
    return {**response, "headers": {"Retry-After": copy.deepcopy(_RETRY_AFTER)}} if retry_after else response


def _own_copy(document: Json, response: Json, more: Json) -> Json:
    """The response, filled up with headers and contents that it does not have. A component that others refer to is
    copied first; a reference to another document is left as it is.
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


def _may_be_kept(status: str, keep_status: Callable[[int], bool]) -> bool:
    """Statuses are written as `201`, as `2XX`, or as `default` for all others."""
    if status == "default":
        return any(map(keep_status, range(200, 600)))
    if status.upper().endswith("XX"):
        return any(keep_status(int(status[0]) * 100 + rest) for rest in range(100))
    return status.isdecimal() and keep_status(int(status))


def _resolved(document: Json, value: Json) -> Json:
    """What a reference inside the document leads to; the reference itself if it leads elsewhere or nowhere."""
    reference = value.get("$ref", "")
    if not reference.startswith("#/"):
        return value
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return value
    # From OpenAPI 3.1 on, a reference may say something else of its own.
    return {**found, **{name: own for name, own in value.items() if name != "$ref"}}
