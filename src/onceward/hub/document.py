"""What the hub's OpenAPI document says of every operation: that it may end in a problem, and what its token must allow."""

from __future__ import annotations

import copy
from typing import Any

from onceward.http.openapi import PROBLEM_MEDIA_TYPE, PROBLEM_SCHEMA
from onceward.hub.scopes import scope_needed, scopes_of

# What FastAPI says of its own validation answers, which are never sent.
_NOT_SENT = ("HTTPValidationError", "ValidationError")
# An operation needs it or, with the empty alternative, nothing: before the first token.
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": (
        "A token that `onceward token create` has made; what stands beside it is the scope that it needs. Until a hub's "
        "first token is created, requests from its own machine need none."
    ),
}


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """The document with problem answers instead of FastAPI's validation answers, and with what a token has to allow.
    The one passed in is not changed.
    """
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
            # Any one of these will do; the last is a hub without tokens.
            operation["security"] = [*({"token": [scope]} for scope in scopes), {}] if scopes else []
            responses = operation["responses"]
            if "HTTPValidationError" in str(responses.get("422")):
                del responses["422"]
                text = "The request is not valid; `errors` says why, field by field."
                responses.setdefault("400", {"description": text, "content": content})
            if scopes:
                responses.setdefault(
                    "401", {"description": "The token is missing, unknown or revoked.", "content": content}
                )
                responses.setdefault("403", {"description": "The token does not have the scope.", "content": content})
            if "{" in path:
                responses.setdefault("404", {"description": "There is nothing of this name.", "content": content})
            responses.setdefault("default", {"description": "Any other problem.", "content": content})
    return result
