"""What is kept of an effect: a status code and headers where there are any, and the body, or nothing at all."""

from __future__ import annotations

from dataclasses import replace

from onceward.core import value as values
from onceward.core.record import record
from onceward.errors import InvalidOption, OutcomeNotKept

# Small enough to travel inside a batch with 511 others; what is larger is kept as chunks.
INLINE_BYTES_MAX = 64 * 1024
CHUNK_BYTES_MAX = 64 * 1024
# As text, and sealed, which makes them a third longer.
HEADERS_BYTES_MAX = 128 * 1024


@record(frozen=True, slots=True)
class Outcome:
    """`body` is None and `chunks` is 0 when the effect happened but its result could not be kept."""

    code: int | None = None
    headers: str | None = None
    body: bytes | None = None
    chunks: int = 0

    @property
    def kept(self) -> bool:
        return self.body is not None or self.chunks > 0


NOTHING = Outcome()


def inline(outcome: Outcome) -> Outcome:
    """The outcome as it can be kept with its entry, or `InvalidOption`."""
    if outcome.headers is not None and len(outcome.headers.encode()) > HEADERS_BYTES_MAX:
        raise InvalidOption(f"headers hold {HEADERS_BYTES_MAX} bytes")
    if outcome.body is None:
        return outcome
    body = as_bytes(outcome.body)
    if len(body) > INLINE_BYTES_MAX:
        raise InvalidOption(f"an inline body holds {INLINE_BYTES_MAX} bytes; append the rest as chunks")
    return outcome if body is outcome.body else replace(outcome, body=body)


def as_bytes(data: bytes) -> bytes:
    """Bytes that nobody can change any more, of whatever holds them."""
    if type(data) is bytes:
        return data
    try:
        return bytes(memoryview(data))
    except TypeError as error:
        raise InvalidOption(f"a body or a chunk is bytes, not {type(data).__name__}") from error


def pack(value: object, bytes_max: int) -> bytes | None:
    """The bytes to keep of a returned value; None when it has no form or is too large. Never raises: the effect is done."""
    try:
        body = values.encode(value, bytes_max)
    except Exception:  # noqa: BLE001  # the value's own code runs here and may raise anything
        return None
    return body if len(body) <= bytes_max else None


def cut(body: bytes) -> tuple[bytes, ...]:
    """A body as chunks of the size the chunk log takes."""
    return tuple(body[start : start + CHUNK_BYTES_MAX] for start in range(0, len(body), CHUNK_BYTES_MAX))


def unpack(body: bytes | None, returns: type | None = None) -> object:
    """The value `pack` was given, or `OutcomeNotKept`."""
    if body is None:
        raise OutcomeNotKept("the effect happened, but its result could not be kept; it will not run again")
    return values.decode(body, returns)
