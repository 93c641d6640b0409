"""Runs one attempt of a turn: from the messages that wait to the one response that is recorded and delivered.

    step       what has happened                                        what it costs
    started    the turn is processing, or its next epoch has begun      a transaction
    claimed    its beat is held in the ledger, and kept alive           a ledger write
    undone     what superseded runs did is taken back, if it can be     nothing, when there is nothing
    answered   the brain has answered                                   what the brain does
    responded  response, state and event are recorded                   a transaction
    sent       the channel has the response                             with an adapter: two ledger writes
    delivered  the row says so                                          with an adapter: a transaction
    settled    the beat is answered: who asks again gets the response   a ledger write

With the transaction that stored its message, a turn whose brain does nothing costs three transactions and two ledger
writes. Without an adapter there is nothing to deliver, and `delivered_at` is set together with the response.

A crash after any of these steps loses nothing: the row says how far the turn is, and whoever sweeps the database claims
the beat and goes on. A run that was given up is fenced by the epoch: it can neither fire nor say nor respond.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onceward.blobs import BlobStore
from onceward.core.canonical import Json
from onceward.core.claim import Busy, Claim, Replay
from onceward.core.text import compact
from onceward.db.clock import time_text
from onceward.db.engine import Database
from onceward.errors import OncewardError, StoreUnavailable, Superseded, described
from onceward.ledger import Ledger
from onceward.turns.brain import Brain
from onceward.turns.deliver import ChannelAdapter, deliver
from onceward.turns.held import BEAT_TTL_SECONDS, LEASE_SECONDS, Beats
from onceward.turns.mind import Mind
from onceward.turns.observe import Observer
from onceward.turns.plain import plain
from onceward.turns.rows import Rows, Seen
from onceward.turns.threads import in_thread
from onceward.turns.turn import UNFINISHED, Clock, State, Turn, now_utc

MAX_ATTEMPTS = 3
# A brain that works longer than this on one turn is taken for hung.
MAX_RUN_SECONDS = 3600.0
# A turn whose runs end without a word this often takes its processes down with it, and is given up.
BROKEN_OFF_MAX = 50
# How long a turn rests after its first failure, its second, and so on.
RETRY_SECONDS = (0.5, 2.0, 10.0)

Step: TypeAlias = Callable[[str, Turn], Awaitable[None]]

_log = logging.getLogger("onceward.turns")


class Ending(enum.StrEnum):
    """How a run of the engine ended for its turn."""

    COMPLETE = "complete"  # it has its response, by this run or by an earlier one
    UNDELIVERED = "undelivered"  # likewise, and the channel does not have it
    FAILED = "failed"  # tried as often as it may be
    SUPERSEDED = "superseded"  # it goes on elsewhere, under another epoch or id
    LATER = "later"  # it is due at `at`
    WAITING = "waiting"  # for an older turn of its session
    BUSY = "busy"  # somebody else runs it
    OVER = "over"  # there is no such turn, or nothing to do


# Of a turn that was finished before.
_ENDINGS = {
    State.COMPLETE: Ending.COMPLETE,
    State.FAILED: Ending.FAILED,
    State.SUPERSEDED: Ending.SUPERSEDED,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """`next_turn` is the oldest unfinished turn of the same session, once this one is finished."""

    ending: Ending
    at: str | None = None
    next_turn: str | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """A run that goes on in this process."""

    seen: Seen
    claim: Claim
    thinking: asyncio.Task[Json] | None = None
    interrupted: bool = False

    @property
    def turn(self) -> Turn:
        return self.seen.turn


# Makes an attempt of a turn: calls it once, and gives what it gave.
Through: TypeAlias = Callable[[Turn, Callable[[], Awaitable[Ran]]], Awaitable[Ran]]


async def directly(_turn: Turn, attempt: Callable[[], Awaitable[Ran]]) -> Ran:
    return await attempt()


async def _go_on(_name: str, _turn: Turn) -> None:
    return


class Engine:
    """Shared by the runners of a process; belongs to one event loop. Its database work is done in threads.

    max_attempts  a turn has failed when its brain has raised so often
    blobs         where large artifacts lie
    step          called after each of the steps above, for tests
    hint          called after commits that appended events
    told          called with the id of a turn of which there is something new to see
    """

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        brain: Brain,
        *,
        adapter: ChannelAdapter | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        beat_ttl_seconds: float = BEAT_TTL_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        max_run_seconds: float = MAX_RUN_SECONDS,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
        observer: Observer | None = None,
        blobs: BlobStore | None = None,
        now: Clock = now_utc,
        step: Step = _go_on,
        hint: Callable[[], None] = lambda: None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.database = database
        self.now = now
        self._ledger = ledger
        self._adapter = adapter
        self._rows = Rows(database, now, delivers=adapter is not None)
        self._beats = Beats(ledger, beat_ttl_seconds, lease_seconds, observer)
        self._max_attempts = max_attempts
        self._max_run_seconds = max_run_seconds
        self._retry_seconds = tuple(retry_seconds)
        self._mind = Mind(database, ledger, brain, self._rows, observer=observer, blobs=blobs, now=now, told=told)
        self._step = step
        self._hint = hint
        self._told = told
        self._runs: dict[str, _Run] = {}

    @property
    def running(self) -> dict[str, int]:
        """The epochs of the turns that run here."""
        return {turn_id: run.turn.epoch for turn_id, run in self._runs.items()}

    def interrupt(self, turn_id: str) -> None:
        """The run of this turn is nobody's any more: its brain is cancelled."""
        run = self._runs.get(turn_id)
        if run is not None:
            run.interrupted = True
            if run.thinking is not None:
                run.thinking.cancel()

    async def run(self, turn_id: str, through: Through = directly) -> Ran:
        """Do for this turn what can be done now, up to the end of one attempt, which is made `through` something."""
        seen = await in_thread(self._rows.look, turn_id)
        if seen is None:
            return Ran(Ending.OVER)
        turn = seen.turn
        if seen.fresh:
            await self._step("started", turn)
            return await self._attempt(seen, through)
        if turn.state is State.COMPLETE and turn.delivered_at is None:
            return await self._resume_delivery(seen)
        if turn.state not in UNFINISHED:
            # Whoever finished it may not have got as far as to start the next one.
            return Ran(_ENDINGS[turn.state], next_turn=await in_thread(self._rows.next_turn, turn))
        if turn.accumulate_until > time_text(self.now()):
            return Ran(Ending.LATER, turn.accumulate_until)
        if turn.state is State.ACCUMULATING:
            return Ran(Ending.WAITING)
        return await self.take_over(seen, through)

    async def take_over(self, seen: Seen, through: Through = directly) -> Ran:
        """Go on with a turn that runs, if whoever runs it is gone."""
        return await self._attempt(seen, through)

    async def _attempt(self, seen: Seen, through: Through) -> Ran:
        found = await self._beats.begin(seen.turn, seen.messages)
        if isinstance(found, Busy):
            return Ran(Ending.BUSY)
        claim = found if isinstance(found, Claim) else None
        try:
            await self._step("claimed", seen.turn)
            if not seen.fresh:
                # Whoever worked on it is gone, or finds itself under an epoch that has passed.
                taken = await in_thread(self._rows.restart, seen)
                if taken is None:
                    await self._let_go(claim)
                    return Ran(Ending.SUPERSEDED)
                seen = taken
                await self._step("started", seen.turn)
                if seen.turn.attempts - seen.turn.failures > BROKEN_OFF_MAX:
                    await self._let_go(claim)
                    return await self._end(seen.turn, f"{BROKEN_OFF_MAX} runs of it broke off without a word")
            if claim is not None:
                return await self._hold(seen, claim, through)
        except BaseException:
            # Nobody knows how far it came but the row. Whoever sweeps next need not wait for the lease.
            await self._let_go(claim)
            raise
        if isinstance(found, Replay):
            return await self._replay(seen.turn, found)
        return await self._end(seen.turn, "its message ids were used before, for messages that said something else")

    async def _let_go(self, claim: Claim | None) -> None:
        if claim is not None:
            try:
                await self._ledger.lapse(claim)
            except OncewardError as error:
                _log.warning("a beat was not given back, its lease will lapse: %s", error)

    # With the claim in hand.

    async def _hold(self, seen: Seen, claim: Claim, through: Through) -> Ran:
        run = _Run(seen, claim)
        self._runs[seen.turn.id] = run
        kept = self._ledger.keep(claim, self._beats.lease_seconds, self._beats.ttl_seconds, self._max_run_seconds)
        try:
            return await through(run.turn, lambda: self._carry_out(run))
        finally:
            del self._runs[seen.turn.id]
            self._ledger.drop(kept)

    async def _carry_out(self, run: _Run) -> Ran:
        try:
            await self._mind.undo(run.seen)
            await self._step("undone", run.turn)
            response = await self._think(run)
        except Superseded:
            return await self._give_up(run)
        except StoreUnavailable:
            # Not the brain's fault: it does not count.
            raise
        except Exception as error:  # noqa: BLE001  # the brain's own, which may be anything
            _log.exception("a brain failed", extra={"turn_id": run.turn.id, "attempt": run.turn.attempts})
            return await self._fail(run, described(error))
        await self._step("answered", run.turn)
        done = await in_thread(self._rows.respond, run.turn, response)
        if done is None:
            return await self._give_up(run)
        self._show(done.turn)
        await self._step("responded", done.turn)
        delivered = await self._deliver(done.turn)
        await self._beats.settle(run.claim, done.turn)
        await self._step("settled", done.turn)
        return Ran(_complete(delivered), next_turn=done.next_turn)

    async def _give_up(self, run: _Run) -> Ran:
        """What this run found out is nobody's."""
        await self._ledger.release(run.claim)
        return Ran(Ending.SUPERSEDED)

    async def _think(self, run: _Run) -> str:
        """The brain's response as JSON text; `Superseded` when nobody waits for it any more."""
        turn = run.turn
        run.thinking = self._mind.think(run.seen)
        if run.interrupted:
            run.thinking.cancel()
        try:
            await asyncio.wait({run.thinking})
        except asyncio.CancelledError:
            run.thinking.cancel()
            await asyncio.wait({run.thinking})
            raise
        if run.interrupted:
            if not run.thinking.cancelled():
                run.thinking.exception()  # seen, so that nobody is told that it was not
            raise Superseded(f"the turn {turn.id} goes on without this run")
        if run.thinking.cancelled():
            raise OncewardError("the brain was cancelled by itself")
        return compact(plain(run.thinking.result()))

    async def _fail(self, run: _Run, failure: str) -> Ran:
        rests = self._retry_seconds or (0.0,)
        rest = rests[min(run.turn.failures, len(rests) - 1)]
        ran = await self._end(run.turn, failure, self._max_attempts, rest)
        await self._ledger.fail(run.claim, failure)
        return ran

    async def _end(self, turn: Turn, failure: str, most: int = 0, rest: float = 0.0) -> Ran:
        after = await in_thread(self._rows.fail, turn, failure, most, rest)
        if after is None:
            return Ran(Ending.SUPERSEDED)
        if after.turn.state is not State.FAILED:
            return Ran(Ending.LATER, after.turn.accumulate_until)
        self._show(after.turn)
        return Ran(Ending.FAILED, next_turn=after.next_turn)

    # When the response is there.

    async def _deliver(self, turn: Turn, first: str | None = None) -> bool:
        """Whether the channel has it. What it does not have stays in the database for whoever sweeps."""
        if turn.delivered_at is not None:
            return True
        if self._adapter is not None:
            try:
                await deliver(self._ledger, self._adapter, turn, first)
            except OncewardError as error:
                _log.warning("a response was not delivered: %s", error, extra={"turn_id": turn.id})
                return False
            except Exception:  # noqa: BLE001  # the adapter's own, which may be anything
                _log.exception("a response was not delivered", extra={"turn_id": turn.id})
                return False
            await self._step("sent", turn)
        await in_thread(self._rows.delivered, turn)
        await self._step("delivered", turn)
        return True

    async def _replay(self, turn: Turn, found: Replay) -> Ran:
        """The beat was answered under another turn: that response is the response to these messages, too."""
        kept = await self._beats.answered(found)
        response = kept.response or await in_thread(self._rows.response_of, kept.turn_id)
        if response is None:
            return await self._end(turn, f"{kept.turn_id} answered these messages, and its response is not kept")
        done = await in_thread(self._rows.respond, turn, response, f"answered as {kept.turn_id}")
        if done is None:
            return Ran(Ending.SUPERSEDED)
        self._show(done.turn)
        await self._step("responded", done.turn)
        delivered = await self._deliver(done.turn, kept.turn_id)
        return Ran(_complete(delivered), next_turn=done.next_turn)

    async def _resume_delivery(self, seen: Seen) -> Ran:
        """Whoever responded did not get as far as to deliver."""
        found = await self._beats.begin(seen.turn, seen.messages)
        if isinstance(found, Busy):
            return Ran(Ending.BUSY)
        delivered = await self._deliver(seen.turn)
        if isinstance(found, Claim):
            await self._beats.settle(found, seen.turn)
            await self._step("settled", seen.turn)
        return Ran(_complete(delivered), next_turn=await in_thread(self._rows.next_turn, seen.turn))

    def _show(self, turn: Turn) -> None:
        self._hint()
        self._told(turn.id)


def _complete(delivered: bool) -> Ending:
    return Ending.COMPLETE if delivered else Ending.UNDELIVERED
