"""Stored policy: which statuses and headers of a response are stored, and the text form of headers."""

from __future__ import annotations

import functools
import json

from onceward.errors import OutcomeNotKept

Headers = tuple[tuple[bytes, bytes], ...]

# Statuses that mean "not now" or "not you", which may change before the next attempt.
RETRIABLE_STATUSES = frozenset({401, 403, 408, 409, 425, 429})
# Headers that belong to one connection or one exchange, and would be wrong or private in a later one.
DENY_HEADERS = frozenset({
    "set-cookie", "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade", "date", "server", "x-request-id", "request-id", "x-correlation-id",
    "correlation-id", "x-amzn-requestid", "x-amzn-trace-id", "x-trace-id", "traceparent", "tracestate",
    "idempotent-replayed",
})  # fmt: skip

# Statuses of responses without a body, whatever their Content-Length.
BODILESS_STATUSES = frozenset({204, 304})
CONTENT_LENGTH = b"content-length"

_SUCCESS, _REDIRECT, _SERVER_ERROR = 200, 300, 500


def keeps_status(status: int) -> bool:
    """Return whether a response with this status is stored. After a server error the retry runs again."""
    return _SUCCESS <= status < _SERVER_ERROR and status not in RETRIABLE_STATUSES


def keeps_success(status: int) -> bool:
    """Return whether the response to a webhook is stored. After anything but a success the sender delivers again."""
    return _SUCCESS <= status < _REDIRECT


# Most responses of a route have the same headers, so the results are cached.
@functools.lru_cache(maxsize=256)
def headers_to_text(headers: Headers, deny: frozenset[bytes]) -> str:
    """Encode the headers as JSON, which operators can read with SQL. `deny`: lower-case names to leave out."""
    kept = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers if name.lower() not in deny]
    return json.dumps(kept, separators=(",", ":"))


@functools.lru_cache(maxsize=256)
def headers_from_text(text: str | None) -> Headers:
    """Decode the result of `headers_to_text`. Raises `OutcomeNotKept`."""
    if text is None:
        return ()
    try:
        return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OutcomeNotKept("the stored headers of this response cannot be read") from error


def head_to_chunk(status: int, headers: str) -> bytes:
    """Encode status and headers as the first chunk, so that a duplicate can join before the response is complete."""
    return f"{status} {headers}".encode()


def head_from_chunk(chunk: bytes) -> tuple[int, str]:
    """Decode the result of `head_to_chunk`. Raises `OutcomeNotKept`."""
    try:
        status, _, headers = chunk.decode().partition(" ")
        return int(status), headers
    except ValueError as error:
        raise OutcomeNotKept("the stored head of this response cannot be read") from error
