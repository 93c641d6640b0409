"""The form in which a response lies in the ledger, sealed or not.

A body of up to 64 KiB is kept with its entry. A larger or streamed one is a log of chunks: the first is the head
(status and headers), so that a duplicate can join before the end is known, and the body follows from number 2.

Of a sealed response, everything is bound to its entry and version, and besides:

    the settled headers    to the status and the number of chunks, which are known by then
    the head chunk         to the status; it counts only while the response is not settled
    a chunk of the body    to its number

So neither status nor headers can be changed, and no chunk be left out, added or exchanged, without being noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onceward.core.claim import Entry
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX, Outcome
from onceward.core.record import record
from onceward.core.response import (
    Headers,
    head_from_chunk,
    head_to_chunk,
    headers_from_text,
    headers_to_text,
)
from onceward.errors import OutcomeNotKept
from onceward.http.seal import SEAL_BYTES, Seal

HEAD_SEQ = 1


@record(frozen=True, slots=True)
class Form:
    """How responses are written down and read again. `deny` names, in lower case, the headers that are left out."""

    deny: frozenset[bytes]
    seal: Seal | None = None

    @property
    def inline_bytes_max(self) -> int:
        return INLINE_BYTES_MAX - (SEAL_BYTES if self.seal else 0)

    @property
    def chunk_bytes_max(self) -> int:
        return CHUNK_BYTES_MAX - (SEAL_BYTES if self.seal else 0)

    # Writing.

    def headers(self, entry: Entry, status: int, headers: Iterable[tuple[bytes, bytes]], chunks: int = 0) -> str:
        """The headers of a settled response that has this many chunks."""
        return self._text(entry, headers, _settled(status, chunks))

    def inline(self, entry: Entry, body: bytes) -> bytes:
        return body if self.seal is None else self.seal.seal(body, _place(entry, "body"))

    def head(self, entry: Entry, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The first chunk, for a duplicate that joins before the response is settled."""
        chunk = head_to_chunk(status, self._text(entry, headers, f"head {status}"))
        if len(chunk) > CHUNK_BYTES_MAX:
            raise OutcomeNotKept("the headers of this response are too large to be kept")
        return chunk

    def _text(self, entry: Entry, headers: Iterable[tuple[bytes, bytes]], what: str) -> str:
        text = headers_to_text(tuple(headers), self.deny)
        if len(text.encode()) > self.inline_bytes_max:
            raise OutcomeNotKept("the headers of this response are too large to be kept")
        return text if self.seal is None else self.seal.seal_text(text, _place(entry, what))

    def chunks(self, entry: Entry, seq: int, pieces: Sequence[bytes]) -> list[bytes]:
        """Pieces of the body as the chunks from number `seq` on."""
        if self.seal is None:
            return list(pieces)
        return [self.seal.seal(piece, _place(entry, str(number))) for number, piece in enumerate(pieces, seq)]

    def cut(self, body: bytes) -> list[bytes]:
        size = self.chunk_bytes_max
        return [body[start : start + size] for start in range(0, len(body), size)]

    def whole(
        self, entry: Entry, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> tuple[Outcome, tuple[bytes, ...]]:
        """A response that is there as a whole: its outcome, and the chunks that go with it."""
        headers = tuple(headers)
        if len(body) <= self.inline_bytes_max:
            return Outcome(status, self.headers(entry, status, headers), self.inline(entry, body)), ()
        head = self.head(entry, status, headers)
        chunks = (head, *self.chunks(entry, HEAD_SEQ + 1, self.cut(body)))
        return Outcome(status, self.headers(entry, status, headers, len(chunks)), None, len(chunks)), chunks

    # Reading.

    def read_settled(self, entry: Entry) -> tuple[int, Headers]:
        """Status and headers of a settled entry, or `OutcomeNotKept`."""
        outcome = entry.outcome
        if outcome.code is None:
            raise OutcomeNotKept("the entry has no status of a response")
        return outcome.code, self._headers(entry, outcome.headers, _settled(outcome.code, outcome.chunks))

    def read_inline(self, entry: Entry, body: bytes) -> bytes:
        return body if self.seal is None else self.seal.open(body, _place(entry, "body"))

    def read_head(self, entry: Entry, chunk: bytes) -> tuple[int, Headers]:
        status, text = head_from_chunk(chunk)
        return status, self._headers(entry, text, f"head {status}")

    def _headers(self, entry: Entry, text: str | None, what: str) -> Headers:
        return headers_from_text(text if self.seal is None else self.seal.open_text(text or "", _place(entry, what)))

    def read_chunks(self, entry: Entry, seq: int, chunks: Sequence[bytes]) -> list[bytes]:
        if self.seal is None:
            return list(chunks)
        return [self.seal.open(chunk, _place(entry, str(number))) for number, chunk in enumerate(chunks, seq)]


def _settled(status: int, chunks: int) -> str:
    return f"settled {status} {chunks}"


def _place(entry: Entry, what: str) -> bytes:
    """Where a sealed piece belongs: moved to another entry, it does not open."""
    return f"{entry.scope}\x00{entry.key}\x00{entry.version}\x00{what}".encode()
