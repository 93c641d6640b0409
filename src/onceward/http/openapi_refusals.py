"""The refusals of the middleware in an OpenAPI document, in the format and with the statuses of each route."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from onceward.http import problem
from onceward.http.keyed.rules import REFUSE, Rule
from onceward.http.problem import Refusal, Response
from onceward.http.problem_formats import acp_error, problem_json, stripe_error, ucp_error
from onceward.http.request.key_source import FirstOf, HeaderKey, KeyHeaders, KeySource, QueryKey
from onceward.http.response.shape import formatted
from onceward.http.webhooks import JoinedHeaders

# Parsed JSON.
Json = dict[str, Any]

PROBLEM_MEDIA_TYPE = "application/problem+json"
KEY_HEADER = "Idempotency-Key"

RETRY_AFTER: Json = {
    "description": "Seconds to wait before a retry with the same key.",
    "schema": {"type": "integer", "minimum": 1},
}
ECHO: Json = {"description": "The idempotency key of the request.", "schema": {"type": "string"}}

_BUSY = "A request with this key is being processed (with Retry-After), is in doubt, has no stored response, or had"
# For each status of a problem: its description, its responses, and whether it may carry Retry-After.
_PROBLEMS: dict[str, tuple[str, tuple[Response, ...], bool]] = {
    "400": ("The idempotency key is malformed, or missing where it is required.", (), False),
    "409": (
        f"{_BUSY} other cookies.",
        (problem.busy(), problem.in_doubt(), problem.not_kept(), problem.principal_changed()),
        True,
    ),
    "413": ("The body is too large for a request with an idempotency key.", (), False),
    "422": ("The idempotency key was already used with a different request.", (problem.mismatch(),), False),
    "503": ("The store of idempotency keys is unavailable.", (problem.unavailable(),), True),
}
_EXPIRED = "The key is no longer stored, and is refused."
_TOO_MANY = "Too many new idempotency keys."

# For other formats: each refusal, with its description.
_REFUSALS: tuple[tuple[Response, str], ...] = (
    (problem.key_required(), "The idempotency key is missing."),
    (problem.bad_key("The idempotency key is malformed."), "The idempotency key is malformed."),
    (problem.busy(), "A request with this key is being processed."),
    (problem.mismatch(), "The idempotency key was already used with a different request."),
    (problem.in_doubt(), "It is unknown whether the request was carried out."),
    (problem.not_kept(), "The response was not stored."),
    (problem.principal_changed(), "The key was used with other cookies."),
    (problem.expired(), _EXPIRED),
    (problem.too_many_keys(1), _TOO_MANY),
    (problem.too_large(0), "The body is too large for a request with an idempotency key."),
    (problem.unavailable(), "The store of idempotency keys is unavailable."),
)

_STRING: Json = {"type": "string"}
_SCHEMAS: dict[Callable[[Refusal], Response], Json] = {
    acp_error: {
        "type": "object",
        "required": ["type", "code", "message"],
        "properties": {"type": _STRING, "code": _STRING, "message": _STRING},
    },
    ucp_error: {
        "type": "object",
        "required": ["code", "content"],
        "properties": {"code": _STRING, "content": _STRING},
    },
    stripe_error: {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _STRING, "code": _STRING, "message": _STRING},
            }
        },
    },
}


def refusals_of(rule: Rule, problem_schema: Json) -> dict[str, Json]:
    """Return our description of the refusals of a route, by status."""
    found = _problems(rule, problem_schema) if rule.problem in (None, problem_json) else _other_format(rule)
    if rule.echo:
        for response in found.values():
            response.setdefault("headers", {})[KEY_HEADER] = copy.deepcopy(ECHO)
    return found


def _problems(rule: Rule, schema: Json) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for status, (text, examples, retry_after) in _PROBLEMS.items():
        if status == "422" and rule.webhook is not None:
            continue  # only the id of a webhook is compared
        if status == "409" and rule.after_retention == REFUSE:
            text, examples = f"{text} {_EXPIRED}", (*examples, problem.expired())  # noqa: PLW2901  # this route's
        found[status] = _response(text, PROBLEM_MEDIA_TYPE, schema, [json.loads(one.body) for one in examples])
        if retry_after:
            found[status]["headers"] = {"Retry-After": copy.deepcopy(RETRY_AFTER)}
    if rule.max_keys_per_principal is not None:
        example = json.loads(problem.too_many_keys(1).body)
        found["429"] = _response(_TOO_MANY, PROBLEM_MEDIA_TYPE, schema, [example])
        found["429"]["headers"] = {"Retry-After": copy.deepcopy(RETRY_AFTER)}
    return found


def _response(text: str, media_type: str, schema: Json, bodies: list[Json]) -> Json:
    content: Json = {"schema": dict(schema)}
    if bodies:
        content["examples"] = {body["code"]: {"value": body} for body in bodies}
    return {"description": text, "content": {media_type: content}}


def _other_format(rule: Rule) -> dict[str, Json]:
    left_out = {"expired"} if rule.after_retention != REFUSE else set()
    if not rule.required:
        left_out.add("key_required")
    if rule.max_keys_per_principal is None:
        left_out.add("too_many_keys")
    if rule.webhook is not None:
        left_out |= {"mismatch", "principal_changed"}
    problem_format = rule.problem_format or problem_json
    found: dict[str, Json] = {}
    for sample, text in _REFUSALS:
        refusal = sample.refusal
        if refusal is None or refusal.kind in left_out:
            continue
        made = formatted(refusal, problem_format)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in made.headers}
        media_type = headers.get("content-type", "application/json").partition(";")[0]
        response = found.setdefault(str(made.status), {"description": "", "content": {}})
        response["description"] = f"{response['description']} {text}".strip()
        content = response["content"].setdefault(
            media_type, {"schema": copy.deepcopy(_SCHEMAS.get(problem_format, {})), "examples": {}}
        )
        content["examples"][refusal.kind] = {"value": _value(made.body)}
        if refusal.retry_after is not None:
            response["headers"] = {"Retry-After": copy.deepcopy(RETRY_AFTER)}
    return found


def _value(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def parameters_of(source: KeySource | None) -> list[tuple[str, str]] | None:
    """Return where a key is sent as parameters (in, name); None if it is in the body."""
    if source is None or isinstance(source, KeyHeaders):
        return [("header", KEY_HEADER)]
    if isinstance(source, HeaderKey):
        return [("header", source.header_name)]
    if isinstance(source, QueryKey):
        return [("query", source.parameter)]
    if isinstance(source, JoinedHeaders):
        return [("header", name) for name in source.header_names]
    if isinstance(source, FirstOf):
        inner = [parameters_of(one) for one in source.sources]
        return [parameter for one in inner for parameter in one or ()]
    return None


def options_of(rule: Rule) -> Json:
    """Return the options of a route that differ from the defaults, for the extension `x-idempotency`."""
    defaults = {"compare": "bytes", "scope": "principal", "after_retention": "run"}
    found: Json = {name: value for name, default in defaults.items() if (value := getattr(rule, name)) != default}
    if rule.source is not None:
        found["key"] = rule.source.name
    for name in ("profile", "max_keys_per_principal"):
        if (value := getattr(rule, name)) is not None:
            found[name] = value
    if rule.webhook is not None:
        found["webhook"] = rule.webhook.sender
        found["compare"] = "id"
    return found
