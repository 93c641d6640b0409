"""How a keyed request ends: settled, failed, or nobody knows. The same for ASGI and WSGI; awaits nothing but the ledger."""

from __future__ import annotations

import logging
import threading

from onceward.blocking import wait
from onceward.bound import forget_bound
from onceward.core.claim import Claim, Status
from onceward.errors import ClaimLost, OncewardError, StoreUnavailable
from onceward.http import problem
from onceward.http.guard import Asked, Guard
from onceward.http.operation import Binding, Operation
from onceward.http.problem import Answer
from onceward.http.recording import Recording
from onceward.terms import MAX_RUN_SECONDS

_ERROR = 400
# Between two tries to record what could not be recorded at once.
_PAUSE_SECONDS_MIN = 0.05
_PAUSE_SECONDS_MAX = 2.0

# How long a response that the store did not take is recorded again. Longer than a lease: a claim that has lapsed can
# still be settled until another request asks for its key, and that is better than a second effect.
LATE_SECONDS = 300.0

logger = logging.getLogger("onceward.http")


class Ending:
    """The claim of one request that runs, until what became of it is recorded."""

    __slots__ = ("_asked", "_binding", "_claim", "_guard", "_renews", "operation", "recording")

    def __init__(self, guard: Guard, asked: Asked, claim: Claim) -> None:
        ledger, rule = guard.ledger, asked.rule
        kept = ledger.keep(claim, rule.lease_seconds, rule.retain_seconds, MAX_RUN_SECONDS)
        self._guard = guard
        self._asked = asked
        self._claim = claim
        self._renews = True
        self._binding = Binding(ledger, guard.form, claim, rule, kept)
        self.operation = Operation(asked.key, self._binding)
        self.recording = Recording(ledger, guard.form, claim, rule, guard.keep_status)

    def drop(self) -> None:
        """Stop renewing the claim."""
        self.operation.over = True
        if self._renews:
            self._renews = False
            self._binding.drop()

    @property
    def undecided(self) -> bool:
        """A transaction of the handler's is still open: what it decides, decides the request."""
        bound = self.operation.bound
        return bound is not None and bound.open

    @property
    def _retain_seconds(self) -> float | None:
        seconds = self.operation.retain_seconds
        return self._asked.rule.retain_seconds if seconds is None else seconds

    async def release(self) -> None:
        """The handler was never called, or says that it did nothing."""
        self.drop()
        try:
            await self._guard.ledger.release(self._claim)
        except OncewardError as error:
            _not_recorded(error)

    async def settle(self, status: int, *, sent: bool) -> Answer | None:
        """Record the response before its end is passed on. None: go on with it; otherwise what to send instead.

        `ClaimLost` when somebody else's outcome counts; `StoreUnavailable` when nobody could record anything. `sent`
        says that something of the response is on its way already, so that it cannot be replaced any more.
        """
        bound = self.operation.bound
        if bound is not None and bound.settled:
            if await self._committed():
                self.drop()
                return bound.response
            if status < _ERROR or bound.open:
                await self._not_committed()
                if sent:
                    raise ClaimLost("the bound transaction did not commit while its response was under way")
                return problem.problem(503, "The transaction did not commit. Retry with the same key.", retry_after=1)
        elif bound is not None:
            logger.error("a transaction was bound to a request and never settled in; settling outside of it")
            forget_bound()  # its connection may be in another's transaction by now; the entry's own lock decides
        elif self.operation.released:
            await self.release()
            return None
        if not self.operation.stored:
            self.recording.forget()
        if not await self.recording.finish(self._retain_seconds):
            raise ClaimLost("the claim of this request was taken over while its response was under way")
        self.drop()
        if self.recording.doubted:
            self._guard.observer.put_in_doubt(self._asked.key)
        return None

    async def settle_late(self) -> None:
        """Go on trying to record a response that its client was told to ask for again."""
        line = self._guard.ledger.line
        deadline = line.monotonic() + LATE_SECONDS
        pause = _PAUSE_SECONDS_MIN
        while line.monotonic() < deadline:
            try:
                try:
                    await self.recording.finish(self._retain_seconds)
                except StoreUnavailable:
                    await line.sleep(pause)
                    pause = min(pause * 2, _PAUSE_SECONDS_MAX)
                    continue
            except OncewardError as error:
                _not_recorded(error)
            return
        logger.warning("a response could not be recorded for %d seconds; a retry finds the claim lapsed", LATE_SECONDS)

    async def raised(self, note: str) -> Answer | None:
        """The handler raised. Its response, if its bound transaction did commit all the same."""
        self.drop()  # a renewal that came after what follows would take it back
        bound = self.operation.bound
        try:
            if bound is not None and bound.settled and await self._committed():
                return bound.response
            if self.undecided:
                await self._not_committed()
            else:
                await self._guard.failed(self._asked, self._claim, note)
        except OncewardError as error:
            _not_recorded(error)
        return None

    async def unknown(self, note: str) -> None:
        """The handler was cut short, and nobody knows what it did."""
        self.drop()
        try:
            if self.undecided:
                await self._not_committed()
            else:
                await self._guard.unknown(self._asked, self._claim, note)
        except OncewardError as error:
            _not_recorded(error)

    async def _not_committed(self) -> None:
        """What was bound has not committed. Where its connection is still in a transaction, perhaps another's by now,
        nothing can be written from here: somebody else looks again until that is over.
        """
        if self.undecided:
            look_again(self._guard, self._asked, self._claim)
        else:
            await self._guard.failed(self._asked, self._claim, "the bound transaction was rolled back")

    async def _committed(self) -> bool:
        """Whether the bound transaction's outcome is in the ledger."""
        entry = await self._guard.ledger.look(self._claim.entry.ref)
        return entry is not None and (entry.version, entry.status) == (self._claim.version, Status.COMPLETED)


def look_again(guard: Guard, asked: Asked, claim: Claim) -> None:
    """Record, on a thread of its own, that a bound request failed, once its transaction lets go of the entry."""

    def look() -> None:
        line = guard.ledger.line
        deadline = line.monotonic() + LATE_SECONDS
        pause = _PAUSE_SECONDS_MIN
        while line.monotonic() < deadline:
            try:
                wait(guard.failed(asked, claim, "the bound transaction was rolled back"))
            except StoreUnavailable:
                # Locked by the transaction, or the store is away.
                wait(_rest(guard, pause))
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            except OncewardError as error:
                _not_recorded(error)
                return
            else:
                return

    threading.Thread(target=look, name="onceward-bound", daemon=True).start()


async def _rest(guard: Guard, seconds: float) -> None:
    await guard.ledger.line.sleep(seconds)


def _not_recorded(error: OncewardError) -> None:
    logger.warning("the end of a request could not be recorded; its claim will lapse: %s", error)
