"""Outcomes: the recorded status code, headers and body of an effect, each of them optional."""

from __future__ import annotations

from dataclasses import replace

from onceward.core import value as values
from onceward.core.record import record
from onceward.errors import InvalidOption, OutcomeNotKept

# Small enough for a batch of 512 writes. A larger body is stored as chunks.
INLINE_BYTES_MAX = 64 * 1024
CHUNK_BYTES_MAX = 64 * 1024
# The limit of the stored text, after encryption, which adds a third.
HEADERS_BYTES_MAX = 128 * 1024


@record(frozen=True, slots=True)
class Outcome:
    """The recorded result of a finished effect.

    Attributes:
        code: The HTTP status code, if the effect was a request.
        headers: The headers as stored text, if the effect was a request.
        body: The body, if it is small enough to be stored inside the entry.
        chunks: The number of chunks of a larger body. With no body and no chunks, the effect happened but its result
            could not be stored.
    """

    code: int | None = None
    headers: str | None = None
    body: bytes | None = None
    chunks: int = 0

    @property
    def kept(self) -> bool:
        """True if the result was stored, as a body or as chunks."""
        return self.body is not None or self.chunks > 0


NOTHING = Outcome()


def inline(outcome: Outcome) -> Outcome:
    """Return the outcome in the form that is stored inside an entry, or raise `InvalidOption` if it is too large."""
    if outcome.headers is not None and len(outcome.headers.encode()) > HEADERS_BYTES_MAX:
        raise InvalidOption(f"the headers of an outcome may have at most {HEADERS_BYTES_MAX} bytes")
    if outcome.body is None:
        return outcome
    body = as_bytes(outcome.body)
    if len(body) > INLINE_BYTES_MAX:
        raise InvalidOption(f"an inline body may have at most {INLINE_BYTES_MAX} bytes; append a larger one as chunks")
    return outcome if body is outcome.body else replace(outcome, body=body)


def as_bytes(data: bytes) -> bytes:
    """Return an immutable copy of a bytes-like object; `bytes` are returned as they are."""
    if type(data) is bytes:
        return data
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        raise InvalidOption(f"a body or a chunk must be bytes, not {type(data).__name__}") from error


def pack(value: object, bytes_max: int) -> bytes | None:
    """Return the bytes to store for a result, or None if it has no stored form or is too large.

    Never raises, because the effect has already happened.
    """
    try:
        body = values.encode(value, bytes_max)
    except Exception:  # noqa: BLE001  # the value's own code runs here and may raise anything
        return None
    return body if len(body) <= bytes_max else None


def cut(body: bytes) -> tuple[bytes, ...]:
    """Split a body into chunks of the largest size that the chunk log accepts."""
    return tuple(body[start : start + CHUNK_BYTES_MAX] for start in range(0, len(body), CHUNK_BYTES_MAX))


def unpack(body: bytes | None, returns: type | None = None) -> object:
    """Return the value that `pack` was given, or raise `OutcomeNotKept`."""
    if body is None:
        raise OutcomeNotKept("the effect happened, but its result could not be stored; it will not run again")
    return values.decode(body, returns)
