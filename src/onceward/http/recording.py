"""A response written down while it streams to its client, and settled before its end is passed on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from onceward.core.claim import Claim
from onceward.core.outcome import Outcome
from onceward.errors import ClaimLost, OutcomeNotKept
from onceward.http.events import with_id
from onceward.http.kept import HEAD_SEQ, Form
from onceward.http.rules import Rule
from onceward.ledger import CHUNKS_PER_WRITE, Ledger

# What may wait to be written down; a store that is slower than the stream then slows the stream.
BACKLOG_BYTES_MAX = 1024 * 1024
_SERVER_ERROR = 500


class Recording:
    """One response under its claim. Nothing is awaited but the ledger, so that WSGI can use it, too."""

    __slots__ = (
        "_appended", "_claim", "_cut", "_events", "_form", "_headers", "_keeps_status", "_ledger", "_live", "_numbered",
        "_rule", "_size", "_status", "_waiting", "backlog", "doubted", "keeps",
    )  # fmt: skip

    def __init__(
        self, ledger: Ledger, form: Form, claim: Claim, rule: Rule, keeps_status: Callable[[int], bool]
    ) -> None:
        self._ledger = ledger
        self._form = form
        self._claim = claim
        self._rule = rule
        self._keeps_status = keeps_status
        self._status = 0
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._waiting: list[bytes] = []
        self._cut: Sequence[bytes] = ()  # chunks that are not known to be in the ledger yet
        self._size = 0
        self._appended = 0  # chunks in the ledger, the head included
        self._numbered = HEAD_SEQ  # chunks that the events given so far take up
        self._events = False
        self._live = False
        self.backlog = 0
        self.keeps = rule.store is not False
        self.doubted = False

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, events: bool, live: bool) -> None:
        """The head is known. `live` responses are written down as they come, so that duplicates can join them."""
        self._status, self._headers = status, headers
        self._events, self._live = events, live
        self.keeps = self.keeps and self._keeps_status(status)

    def add(self, data: bytes) -> None:
        """Take the next piece of the body."""
        if not self.keeps or not data:
            return
        self._size += len(data)
        if self._size > (self._rule.max_response_bytes or 0):
            self.forget()
            return
        self._waiting.append(data)
        self.backlog += len(data)

    def add_event(self, block: bytes) -> bytes:
        """Take one whole event of an event stream; what is to be sent of it, with an id to resume from."""
        block, pieces = with_id(block, self._claim.version, self._numbered - HEAD_SEQ, self._form.chunk_bytes_max)
        self._numbered += pieces
        self.add(block)
        return block

    def forget(self) -> None:
        """Keep nothing but that it happened."""
        self.keeps = False
        self._waiting, self._cut, self.backlog = [], (), 0

    @property
    def due(self) -> bool:
        """Whether something should be written down before the response ends."""
        return self.backlog > self._form.inline_bytes_max or (self._live and self.backlog > 0)

    async def append(self) -> None:
        """Write down what has gathered. `ClaimLost` when somebody else has the claim by now.

        What the store did not take stays, and is written the next time in the very same parts: a part that did arrive
        is known again by its size.
        """
        while self.keeps and (self._cut or self._waiting):
            if not self._cut:
                self._cut_up()
                continue
            part = self._cut[:CHUNKS_PER_WRITE]
            await self._ledger.append(self._claim, self._appended + 1, part)
            self._appended += len(part)
            self._cut = self._cut[len(part) :]

    def _cut_up(self) -> None:
        entry, form = self._claim.entry, self._form
        waiting, self._waiting, self.backlog = self._waiting, [], 0
        pieces = (
            [piece for block in waiting for piece in form.cut(block)] if self._events else form.cut(b"".join(waiting))
        )
        head = []
        if self._appended == 0:
            try:
                head = [form.head(entry, self._status, self._headers)]
            except OutcomeNotKept:
                self.forget()
                return
        self._cut = head + form.chunks(entry, self._appended + len(head) + 1, pieces)

    def finish(self, retain_seconds: float | None) -> Coroutine[Any, Any, bool]:
        """Record what became of the request; false when the claim is lost, and then another's outcome counts."""
        ledger, claim, form = self._ledger, self._claim, self._form
        if not self._keeps_status(self._status):
            return self._not_kept()
        if not self.keeps:
            return ledger.settle(claim, Outcome(code=self._status), retain_seconds)
        begun = self._appended > 0 or self._cut or (self._events and self._waiting)
        if not begun and self.backlog <= form.inline_bytes_max:
            entry = claim.entry
            body = self._waiting[0] if len(self._waiting) == 1 else b"".join(self._waiting)
            try:
                headers = form.headers(entry, self._status, self._headers)
                outcome = Outcome(self._status, headers, form.inline(entry, bytes(body)))
            except OutcomeNotKept:
                outcome = Outcome(self._status)
            return ledger.settle(claim, outcome, retain_seconds)
        return self._finish_log(retain_seconds)

    async def _finish_log(self, retain_seconds: float | None) -> bool:
        try:
            await self.append()
        except ClaimLost:
            return False
        outcome = Outcome(self._status)
        if self.keeps:
            headers = self._form.headers(self._claim.entry, self._status, self._headers, self._appended)
            outcome = Outcome(self._status, headers, None, self._appended)
        return await self._ledger.settle(self._claim, outcome, retain_seconds)

    async def _not_kept(self) -> bool:
        """A status that says "try again": the next one runs. Where that is not allowed, a server error is a doubt."""
        note = f"answered {self._status}"
        if self._status >= _SERVER_ERROR and not self._rule.repeatable:
            self.doubted = True
            return await self._ledger.doubt(self._claim, note)
        return await self._ledger.fail(self._claim, note, self._rule.retain_seconds)
