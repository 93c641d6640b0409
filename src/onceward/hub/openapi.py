"""Additions to the hub's OpenAPI document: problem responses, and the token scopes of every operation."""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI

from onceward.http.openapi import PROBLEM_SCHEMA
from onceward.http.openapi_refusals import PROBLEM_MEDIA_TYPE, RETRY_AFTER
from onceward.hub.openapi_examples import add_request_examples
from onceward.hub.security.scopes import scope_needed, scopes_of

# Schemas of FastAPI's own validation responses, which the hub never sends.
_NOT_SENT = ("HTTPValidationError", "ValidationError")
# Operations also list an empty alternative, because no token is needed before the first one is created.
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": (
        "A token from `onceward token create`, with the scope that is listed for the operation. Until the first token "
        "of a hub is created, requests from its own machine need none."
    ),
}


# Paths that count towards `hub.max_streams_per_principal`, and those whose messages are queued.
_STREAMS = frozenset({"/api/v1/events/stream", "/chat/stream", "/turns/{turn_id}/events"})
_QUEUES = frozenset({"/chat", "/chat/stream"})
_KEYED = frozenset({"post", "put", "patch"})


def install(app: FastAPI, *, limits_keys: bool = False) -> None:
    """Extend the application's OpenAPI document with `describe`.

    Call it before `document_idempotency`, so that FastAPI's 422 is removed before the middleware's own is added.
    `limits_keys` is whether `idempotency.max_keys_per_principal` is set.
    """
    plain = app.openapi
    source: dict[str, Any] | None = None
    described: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        # FastAPI returns the same object until its routes change.
        nonlocal source, described
        document = plain()
        if document is not source:
            source, described = document, describe(document, limits_keys=limits_keys)
        return described

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def describe(document: dict[str, Any], *, limits_keys: bool = False) -> dict[str, Any]:
    """Return a copy of the document with problem responses instead of FastAPI's, and with the token scopes."""
    result = copy.deepcopy(document)
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    for name in _NOT_SENT:
        schemas.pop(name, None)
    schemas["Problem"] = copy.deepcopy(PROBLEM_SCHEMA)
    result["components"].setdefault("securitySchemes", {})["token"] = dict(_TOKEN)
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, item in result.get("paths", {}).items():
        for method, operation in item.items():
            scopes = scopes_of(scope_needed(method.upper(), path))
            # Any one of these suffices. The last, empty one is for a hub without tokens.
            operation["security"] = [*({"token": [scope]} for scope in scopes), {}] if scopes else []
            responses = operation["responses"]
            if "HTTPValidationError" in str(responses.get("422")):
                del responses["422"]
                text = "The request is not valid. `errors` lists each invalid field and the reason."
                responses.setdefault("400", {"description": text, "content": content})
            if scopes:
                responses.setdefault(
                    "401", {"description": "The token is missing, unknown, revoked or expired.", "content": content}
                )
                responses.setdefault(
                    "403", {"description": "The token does not have the required scope.", "content": content}
                )
                responses.setdefault("503", _retried("The database or the blob store does not respond.", content))
            if "requestBody" in operation:
                responses.setdefault("413", {"description": "The body is too large.", "content": content})
                text = "The body has another media type than those above, or is compressed."
                responses.setdefault("415", {"description": text, "content": content})
            if "206" in responses:
                responses.setdefault("416", {"description": "The range is outside the content.", "content": content})
            if reasons := _too_many(method, path, limits_keys=limits_keys):
                responses.setdefault("429", _retried(" ".join(reasons), content))
            if "{" in path:
                responses.setdefault("404", {"description": "The resource does not exist.", "content": content})
            responses.setdefault("default", {"description": "Any other problem.", "content": content})
    add_request_examples(result)
    return result


def _retried(text: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": content, "headers": {"Retry-After": copy.deepcopy(RETRY_AFTER)}}


def _too_many(method: str, path: str, *, limits_keys: bool) -> list[str]:
    """Return why an operation may respond 429, which depends on its limits."""
    reasons = []
    if path in _STREAMS:
        reasons.append("Too many streams are open for one token name (`hub.max_streams_per_principal`).")
    if path in _QUEUES:
        reasons.append("Too many turns of the session are queued (`turns.max_queued`).")
    elif limits_keys and method in _KEYED:
        reasons.append("Too many new idempotency keys (`idempotency.max_keys_per_principal`).")
    return reasons
