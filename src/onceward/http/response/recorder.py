"""Recorder: writes a response to the ledger while it streams to its client, and settles it before its end is sent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from onceward.core.claim import Claim
from onceward.core.outcome import Outcome
from onceward.errors import ClaimLost, OutcomeNotKept
from onceward.http.keyed.rules import Rule
from onceward.http.response.sse import with_id
from onceward.http.stored.codec import HEAD_SEQ, ResponseCodec
from onceward.ledger.ledger import CHUNKS_PER_WRITE, Ledger

# The largest amount of data of one response that waits to be recorded. Above it, the stream waits for the store.
BACKLOG_BYTES_MAX = 1024 * 1024
_SERVER_ERROR = 500


class ResponseRecorder:
    """The recorder of one response. It awaits only the ledger, so that WSGI can use it, too."""

    __slots__ = (
        "_appended", "_claim", "_codec", "_events", "_headers", "_keeps_status", "_ledger", "_live",
        "_numbered", "_rule", "_size", "_status", "_unconfirmed", "_waiting", "backlog", "doubted", "keeps",
    )  # fmt: skip

    def __init__(
        self, ledger: Ledger, codec: ResponseCodec, claim: Claim, rule: Rule, keeps_status: Callable[[int], bool]
    ) -> None:
        self._ledger = ledger
        self._codec = codec
        self._claim = claim
        self._rule = rule
        self._keeps_status = keeps_status
        self._status = 0
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._waiting: list[bytes] = []
        self._unconfirmed: Sequence[bytes] = ()  # chunks that the ledger has not confirmed yet
        self._size = 0
        self._appended = 0  # chunks in the ledger, the head included
        self._numbered = HEAD_SEQ  # chunks for the events so far, the head included
        self._events = False
        self._live = False
        self.backlog = 0
        self.keeps = rule.store is not False
        self.doubted = False

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, events: bool, live: bool) -> None:
        """Set status and headers. A `live` response is recorded as it streams, so that duplicates can join it."""
        self._status, self._headers = status, headers
        self._events, self._live = events, live
        self.keeps = self.keeps and self._keeps_status(status)

    def add(self, data: bytes) -> None:
        """Add the next piece of the body."""
        if not self.keeps or not data:
            return
        self._size += len(data)
        if self._size > (self._rule.max_response_bytes or 0):
            self.forget()
            return
        self._waiting.append(data)
        self.backlog += len(data)

    def add_event(self, block: bytes) -> bytes:
        """Add one event of an event stream. Return it with the id to resume from, as it is to be sent."""
        block, pieces = with_id(block, self._claim.version, self._numbered - HEAD_SEQ, self._codec.chunk_bytes_max)
        self._numbered += pieces
        self.add(block)
        return block

    def forget(self) -> None:
        """Record only that the request was carried out, not its response."""
        self.keeps = False
        self._waiting, self._unconfirmed, self.backlog = [], (), 0

    @property
    def due(self) -> bool:
        """True if waiting data should be appended before the response ends."""
        return self.backlog > self._codec.inline_bytes_max or (self._live and self.backlog > 0)

    async def append(self) -> None:
        """Append the waiting data to the ledger. Raises `ClaimLost` if another holder has the claim.

        If the store fails, the data stays and is appended next time in the same parts, so that the store recognises a
        part that did arrive by its size.
        """
        while self.keeps and (self._unconfirmed or self._waiting):
            if not self._unconfirmed:
                self._encode_waiting()
                continue
            part = self._unconfirmed[:CHUNKS_PER_WRITE]
            await self._ledger.append(self._claim, self._appended + 1, part)
            self._appended += len(part)
            self._unconfirmed = self._unconfirmed[len(part) :]

    def _encode_waiting(self) -> None:
        """Encode the waiting data as chunks, with the head in front of the first ones."""
        entry, codec = self._claim.entry, self._codec
        waiting, self._waiting, self.backlog = self._waiting, [], 0
        pieces = (
            [piece for block in waiting for piece in codec.split(block)]
            if self._events
            else codec.split(b"".join(waiting))
        )
        head = []
        if self._appended == 0:
            try:
                head = [codec.encode_head(entry, self._status, self._headers)]
            except OutcomeNotKept:
                self.forget()
                return
        self._unconfirmed = head + codec.encode_chunks(entry, self._appended + len(head) + 1, pieces)

    def finish(self, retain_seconds: float | None) -> Coroutine[Any, Any, bool]:
        """Record the outcome of the request; false if the claim is lost, so that another holder's outcome counts."""
        ledger, claim, codec = self._ledger, self._claim, self._codec
        if not self._keeps_status(self._status):
            return self._not_kept()
        if not self.keeps:
            return ledger.settle(
                claim, Outcome(code=self._status), retain_seconds, refuse_seconds=self._rule.refuse_seconds
            )
        begun = self._appended > 0 or self._unconfirmed or (self._events and self._waiting)
        if not begun and self.backlog <= codec.inline_bytes_max:
            entry = claim.entry
            body = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
            try:
                headers = codec.encode_headers(entry, self._status, self._headers)
                outcome = Outcome(self._status, headers, codec.encode_body(entry, bytes(body)))
            except OutcomeNotKept:
                outcome = Outcome(self._status)
            return ledger.settle(claim, outcome, retain_seconds, refuse_seconds=self._rule.refuse_seconds)
        return self._finish_chunks(retain_seconds)

    async def _finish_chunks(self, retain_seconds: float | None) -> bool:
        try:
            await self.append()
        except ClaimLost:
            return False
        outcome = Outcome(self._status)
        if self.keeps:
            headers = self._codec.encode_headers(self._claim.entry, self._status, self._headers, self._appended)
            outcome = Outcome(self._status, headers, None, self._appended)
        return await self._ledger.settle(self._claim, outcome, retain_seconds, refuse_seconds=self._rule.refuse_seconds)

    async def _not_kept(self) -> bool:
        """Record a status that is not stored: the retry runs again, or a server error is in doubt on a hold route."""
        note = f"the response had status {self._status}"
        if self._status >= _SERVER_ERROR and not self._rule.repeatable:
            self.doubted = True
            return await self._ledger.doubt(self._claim, note)
        return await self._ledger.fail(self._claim, note, self._rule.retain_seconds)
