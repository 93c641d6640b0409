"""The stored form of a response in the ledger, encrypted or not.

A body of up to 64 KiB is stored with its entry. A larger or streamed body is a log of chunks. The first chunk is the
head (status and headers), so that a duplicate can join before the response is complete; the body begins with chunk 2.

Each encrypted part is bound to its entry and version. In addition:

    the settled headers    are bound to the status and the number of chunks, which are known by then
    the head chunk         is bound to the status; it is used only while the response is not settled
    a chunk of the body    is bound to its number

A recovery point is bound to its entry and to the time of the first attempt, because later versions read it.

So any change of the status or the headers, and any missing, added or exchanged chunk, is detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from onceward.core.claim import Entry
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX, Outcome
from onceward.core.record import record
from onceward.errors import OutcomeNotKept
from onceward.http.stored.encryption import OVERHEAD_BYTES, Encryption
from onceward.http.stored.policy import Headers, head_from_chunk, head_to_chunk, headers_from_text, headers_to_text

HEAD_SEQ = 1


@record(frozen=True, slots=True)
class ResponseCodec:
    """Codec between responses and their stored form. `deny`: lower-case names of the headers that are not stored."""

    deny: frozenset[bytes]
    encryption: Encryption | None = None

    @property
    def inline_bytes_max(self) -> int:
        return INLINE_BYTES_MAX - (OVERHEAD_BYTES if self.encryption else 0)

    @property
    def chunk_bytes_max(self) -> int:
        return CHUNK_BYTES_MAX - (OVERHEAD_BYTES if self.encryption else 0)

    # Writing.

    def encode_headers(self, entry: Entry, status: int, headers: Iterable[tuple[bytes, bytes]], chunks: int = 0) -> str:
        """Encode the headers of a settled response with this number of chunks."""
        return self._headers_text(entry, headers, _settled(status, chunks))

    def encode_body(self, entry: Entry, body: bytes) -> bytes:
        return body if self.encryption is None else self.encryption.encrypt(body, _bound_to(entry, "body"))

    def encode_head(self, entry: Entry, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Encode the first chunk, for a duplicate that joins before the response is settled."""
        chunk = head_to_chunk(status, self._headers_text(entry, headers, f"head {status}"))
        if len(chunk) > CHUNK_BYTES_MAX:
            raise OutcomeNotKept("the headers of this response are too large to be stored")
        return chunk

    def _headers_text(self, entry: Entry, headers: Iterable[tuple[bytes, bytes]], what: str) -> str:
        text = headers_to_text(tuple(headers), self.deny)
        if len(text.encode()) > self.inline_bytes_max:
            raise OutcomeNotKept("the headers of this response are too large to be stored")
        return text if self.encryption is None else self.encryption.encrypt_text(text, _bound_to(entry, what))

    def encode_chunks(self, entry: Entry, seq: int, pieces: Sequence[bytes]) -> list[bytes]:
        """Encode pieces of the body as chunks; the first has number `seq`."""
        if self.encryption is None:
            return list(pieces)
        return [
            self.encryption.encrypt(piece, _bound_to(entry, str(number))) for number, piece in enumerate(pieces, seq)
        ]

    def split(self, body: bytes) -> list[bytes]:
        size = self.chunk_bytes_max
        return [body[start : start + size] for start in range(0, len(body), size)]

    def encode_response(
        self, entry: Entry, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> tuple[Outcome, tuple[bytes, ...]]:
        """Encode a complete response as an outcome and its chunks."""
        headers = tuple(headers)
        if len(body) <= self.inline_bytes_max:
            return Outcome(status, self.encode_headers(entry, status, headers), self.encode_body(entry, body)), ()
        head = self.encode_head(entry, status, headers)
        chunks = (head, *self.encode_chunks(entry, HEAD_SEQ + 1, self.split(body)))
        return Outcome(status, self.encode_headers(entry, status, headers, len(chunks)), None, len(chunks)), chunks

    def encode_recovery(self, entry: Entry, text: str) -> str:
        """Encode the text of a recovery point. It outlives the version of the entry, so it is not bound to that."""
        return text if self.encryption is None else self.encryption.encrypt_text(text, _recovery_of(entry))

    # Reading.

    def decode_recovery(self, entry: Entry) -> Any:
        """Decode the recovery point of an entry, or None. Raises `OutcomeNotKept` if it cannot be decrypted."""
        if self.encryption is None or entry.recovery is None:
            return entry.recovery_point
        try:
            return json.loads(self.encryption.decrypt_text(entry.recovery, _recovery_of(entry)))
        except OutcomeNotKept:
            raise OutcomeNotKept(
                "the recovery point cannot be decrypted; put the key that encrypted it back into encryption_keys=,"
                " behind the first one"
            ) from None

    def decode_settled(self, entry: Entry) -> tuple[int, Headers]:
        """Decode status and headers of a settled entry. Raises `OutcomeNotKept`."""
        outcome = entry.outcome
        if outcome.code is None:
            raise OutcomeNotKept("the entry has no stored response: its status code is missing")
        return outcome.code, self._decode_headers(entry, outcome.headers, _settled(outcome.code, outcome.chunks))

    def decode_body(self, entry: Entry, body: bytes) -> bytes:
        return body if self.encryption is None else self.encryption.decrypt(body, _bound_to(entry, "body"))

    def decode_head(self, entry: Entry, chunk: bytes) -> tuple[int, Headers]:
        status, text = head_from_chunk(chunk)
        return status, self._decode_headers(entry, text, f"head {status}")

    def _decode_headers(self, entry: Entry, text: str | None, what: str) -> Headers:
        return headers_from_text(
            text if self.encryption is None else self.encryption.decrypt_text(text or "", _bound_to(entry, what))
        )

    def decode_chunks(self, entry: Entry, seq: int, chunks: Sequence[bytes]) -> list[bytes]:
        if self.encryption is None:
            return list(chunks)
        return [
            self.encryption.decrypt(chunk, _bound_to(entry, str(number))) for number, chunk in enumerate(chunks, seq)
        ]


def _settled(status: int, chunks: int) -> str:
    return f"settled {status} {chunks}"


def _recovery_of(entry: Entry) -> bytes:
    return f"{entry.scope}\x00{entry.key}\x00{entry.created_at}\x00recovery point".encode()


def _bound_to(entry: Entry, what: str) -> bytes:
    """Return the associated data of an encrypted piece, without which it cannot be decrypted in another entry."""
    return f"{entry.scope}\x00{entry.key}\x00{entry.version}\x00{what}".encode()
