"""JSON-RPC messages, one per line, as the proxy sees them: only as far as it has to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from onceward.core.json_text import written

# The id of a request, with its type: 1 and "1" are different ids.
MessageId: TypeAlias = tuple[str, str | int | float]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# Errors that a server reports about the request itself, before it runs a tool.
NOTHING_RAN: Final = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})


def decode(line: bytes) -> Any:
    """Parse a line.

    Args:
        line: The line, with or without its end.

    Returns:
        Its JSON value.

    Raises:
        ValueError: It is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(message: Any) -> bytes:
    """Write a message as one line.

    Args:
        message: A JSON value.

    Returns:
        The line, with its end.
    """
    # Line breaks in strings are escaped, so the only one is at the end. So are lone surrogates.
    try:
        return written(message).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def id_of(message: Mapping[str, Any], name: str = "id") -> MessageId | None:
    """Return the id of a request or of the response to it; None if there is none.

    Args:
        message: The message, or the parameters that name a request.
        name: The field that has the id.

    Returns:
        The id with its type.
    """
    found = message.get(name)
    if isinstance(found, str):
        return "text", found
    if isinstance(found, int | float) and not isinstance(found, bool):
        return "number", found
    return None


def is_response(message: Any) -> bool:
    """Return whether a message is the response to a request.

    Args:
        message: Any JSON value.

    Returns:
        True if it has a result or an error.
    """
    return isinstance(message, dict) and "method" not in message and ("result" in message or "error" in message)


def failure(message_id: Any, code: int, text: str) -> dict[str, Any]:
    """Return the response to a request that failed.

    Args:
        message_id: The id of the request, or None if it is unknown.
        code: The code of the error.
        text: The message of the error.

    Returns:
        The message.
    """
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": text}}
