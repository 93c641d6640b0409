"""What is kept of a response: which statuses, which headers, and the text they are kept as."""

from __future__ import annotations

import functools
import json

from onceward.errors import OutcomeNotKept

Headers = tuple[tuple[bytes, bytes], ...]

# They say "not now" or "not you", which may be different the next time.
RETRIABLE_STATUSES = frozenset({401, 403, 408, 409, 425, 429})
# What belongs to one connection or one exchange and would be wrong, or somebody else's, in a later one.
DENY_HEADERS = frozenset({
    "set-cookie", "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade", "date", "server", "x-request-id", "request-id", "x-correlation-id",
    "correlation-id", "x-amzn-requestid", "x-amzn-trace-id", "x-trace-id", "traceparent", "tracestate",
    "idempotent-replayed",
})  # fmt: skip

# They have no body, whatever length they speak of.
BODILESS_STATUSES = frozenset({204, 304})
CONTENT_LENGTH = b"content-length"

_SUCCESS, _SERVER_ERROR = 200, 500


def keeps_status(status: int) -> bool:
    """Whether a response with this status is an outcome. A server error is not: the retry runs again."""
    return _SUCCESS <= status < _SERVER_ERROR and status not in RETRIABLE_STATUSES


# Most responses of a route have the same headers; that many are remembered.
@functools.lru_cache(maxsize=256)
def headers_to_text(headers: Headers, deny: frozenset[bytes]) -> str:
    """The headers to keep as JSON, so that an operator can read them in SQL; without those denied by lower-case name."""
    kept = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers if name.lower() not in deny]
    return json.dumps(kept, separators=(",", ":"))


@functools.lru_cache(maxsize=256)
def headers_from_text(text: str | None) -> Headers:
    """What `headers_to_text` was given."""
    if text is None:
        return ()
    try:
        return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise OutcomeNotKept("the kept headers of this response cannot be read") from error


def head_to_chunk(status: int, headers: str) -> bytes:
    """The first chunk of a recorded body: what precedes it, so that a duplicate can join before the end is known."""
    return f"{status} {headers}".encode()


def head_from_chunk(chunk: bytes) -> tuple[int, str]:
    """What `head_to_chunk` was given."""
    try:
        status, _, headers = chunk.decode().partition(" ")
        return int(status), headers
    except ValueError as error:
        raise OutcomeNotKept("the kept head of this response cannot be read") from error
