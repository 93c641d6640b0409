"""Additions to the hub's OpenAPI document: problem responses, and the token scopes of every operation."""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI

from onceward.http.openapi import PROBLEM_SCHEMA
from onceward.http.openapi_refusals import PROBLEM_MEDIA_TYPE
from onceward.hub.reference.request_examples import add_request_examples
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


def install(app: FastAPI) -> None:
    """Extend the application's OpenAPI document with `describe`.

    Call it before `document_idempotency`, so that FastAPI's 422 is removed before the middleware's own is added.
    """
    plain = app.openapi
    source: dict[str, Any] | None = None
    described: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        # FastAPI returns the same object until its routes change.
        nonlocal source, described
        document = plain()
        if document is not source:
            source, described = document, describe(document)
        return described

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def describe(document: dict[str, Any]) -> dict[str, Any]:
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
            if "{" in path:
                responses.setdefault("404", {"description": "The resource does not exist.", "content": content})
            responses.setdefault("default", {"description": "Any other problem.", "content": content})
    add_request_examples(result)
    return result
