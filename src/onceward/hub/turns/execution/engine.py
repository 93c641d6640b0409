"""Turn engine: run one attempt at a turn, from its stored messages to the one response, recorded and delivered.

Theory of operation
===================

A turn is a row in the database. The row is the only truth about how far the turn is. The ledger decides which process
works on it. No process remembers anything that another process would need, so any of them can die at any point.

            +---------------- ABSORB ----------------+
            v                                        |
    --> ACCUMULATING -------- start ---------> PROCESSING ---- commit point ----> COMMITTING
            |                                    |  |  |                            |  |
            |                                    |  |  +--- last failure --+--------+  |
            |                                    |  |                      v           |
            |                                    |  |                    FAILED        |
            |                                    |  +------ respond -----+-------------+
            |                                    |                       v
            |                                    |                    COMPLETE
            +------------ SUPERSEDE -------------+-----------------> SUPERSEDED

A restart after a crash or a failure keeps the state. A turn that accumulates can already have its commit point, by
FORCE_COMPLETE; it then starts as COMMITTING.

Accumulation. The intake stores each message together with a turn. On channels where people type in bursts, the turn
waits until `accumulate_until`, and each message that joins it moves that time. An attempt starts when the time has come
and the turn is the oldest unfinished one of its session. So a session has at most one running turn; a unique index
enforces it. If a message finds its session idle, its channel does not wait, and a runner of the same process can run
the turn soon, then the turn is stored as already started: state PROCESSING, attempt 1. Its process may die before the
claim; the turn is then one whose process is gone, like any other. A sweep of another process that comes between the two
finds no claim either, and runs the turn.

Beats and claims. The messages of a turn are its beat. The brain runs only under a claim on the beat in the ledger. The
key is made from the message ids. `Busy` means that another process has the claim, and this one does nothing. The claim
is repeatable and is renewed while the attempt runs, for at most `max_run_seconds`. If its process dies, the next one
gets the claim at once where the death can be proved, and otherwise when the lease has lapsed. A settled beat remembers
its response for `beat_ttl_seconds`: another turn with the same beat records that response, and its brain does not run.

Epochs. The claim chooses a process; the epoch makes the choice safe. Each restart, SUPERSEDE and ABSORB increases it.
Each write of a run (start an effect, append to the stream, respond, fail) is an UPDATE or INSERT that requires the
run's epoch and a running state. A run whose epoch has passed, even one that was frozen for an hour, cannot change the
turn: it gets `Superseded`, or its response is dropped. Only the result of an effect that it had already started is
still recorded. `interrupt` cancels its brain early, which only saves work.

Commit point. Before an irreversible tool runs, the gate sets `commit_point` in the transaction that records the call.
After that, the turn can no longer be superseded, because its effect cannot be undone.

Decisions. A message joins the newest turn of its session if that one still accumulates and is not full. Otherwise a
decision (`model/decision.py`) says what happens to the oldest unfinished turn. The transaction that stores the message
applies it:

    SUPERSEDE       this turn ends; a new turn of the same group gets all its messages and the new one
    ABSORB          this turn gets the message and accumulates again
    QUEUE           this turn continues; the message waits in a new turn of another group
    FORCE_COMPLETE  this turn reaches its commit point now; the message waits as with QUEUE

SUPERSEDE and ABSORB mark the compensatable calls of the old run. The next run of the group undoes them, newest first,
before its brain starts. Idempotent effects stay. Tool calls are keyed by the group: if the next run repeats a call, the
call is replayed, unless it was undone; then it runs again, as the next generation.

Delivery. Without a channel adapter, the response counts as delivered when it is recorded. With one, it is sent under a
ledger key of its turn after it is recorded. A response that could not be delivered does not change the turn: it stays
complete with `delivered_at` empty, and the runner tries again.

    step       state after it                                           cost
    started    the turn is running, in a new attempt                    none, if it was stored as started; else a
                                                                        transaction
    claimed    the beat is claimed, and the claim is being renewed      a ledger write
    undone     effects of superseded runs are undone                    none, if there are none
    answered   the brain has returned                                   the brain's own
    responded  response, state and event are recorded                   a transaction
    sent       the channel has the response                             with an adapter: two ledger writes
    delivered  `delivered_at` is set                                    with an adapter: a transaction
    settled    the beat has its response, for a redelivery              a ledger write

Including the transaction that stored its message, a turn whose brain does nothing costs two transactions and two
ledger writes; three transactions if it had to wait. Transactions are shared with other turns and requests, by the writer
of the process. A retry or a takeover claims first and then starts.

    crash             what happens next
    before started    the sweep starts the turn
    before claimed    the sweep claims the beat, restarts the turn and runs the brain
    before responded  the same; the brain runs again. Finished tool calls are replayed. For a call that was running,
                      its effect class decides
    after responded   the sweep delivers the response; the brain does not run again
    while sending     an idempotent adapter sends again; an irreversible one leaves the delivery in doubt
    after sent        the ledger has recorded that the response was sent; only the row is updated
    after delivered   nothing is left to do; the claim on the beat lapses

An exception of the brain is a failure: the turn pauses for `retry_seconds` and is restarted, and `max_attempts`
failures make it FAILED. An unavailable store is not a failure of the turn. An attempt that ends with neither a response
nor a failure is only counted, and after `BROKEN_OFF_MAX` of them the turn is FAILED: it probably kills its processes.

Sweep. Each process periodically reads the unfinished turns that are due and the oldest of their session, and complete
turns that are not delivered (`sweep.py`). It tries to run all of them; guards and claims decide which process succeeds.
It also interrupts runs of this process whose epoch has passed.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onceward.core.canonical import Json
from onceward.core.claim import Busy, Claim, Replay
from onceward.core.json_text import compact
from onceward.core.log_event import log_event
from onceward.errors import OncewardError, StoreUnavailable, Superseded, described
from onceward.hub.blobs import BlobStore
from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import time_text
from onceward.hub.turns.execution.beat_claims import BEAT_TTL_SECONDS, LEASE_SECONDS, BeatClaims
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.brain_runner import BrainRunner
from onceward.hub.turns.execution.delivery import ChannelAdapter, deliver
from onceward.hub.turns.execution.repository import LoadedTurn, TurnRepository
from onceward.hub.turns.model.turn import UNFINISHED, Clock, Message, State, Turn, now_utc
from onceward.ledger.internals import start_renewal, stop_renewal
from onceward.ledger.ledger import Ledger
from onceward.tools.json_result import to_json
from onceward.tools.observer import Observer

MAX_ATTEMPTS = 3
# A brain that takes longer than this for one attempt is presumed hung: the claim is no longer renewed.
MAX_RUN_SECONDS = 3600.0
# Attempts without a response or a failure, after which the turn is given up: it probably kills its processes.
BROKEN_OFF_MAX = 50
# The pauses after the first failure of a turn, the second, and so on.
RETRY_SECONDS = (0.5, 2.0, 10.0)

Step: TypeAlias = Callable[[str, Turn], Awaitable[None]]

_log = logging.getLogger("onceward.turns")


class RunStatus(enum.StrEnum):
    """Result of a call of `Engine.run` for its turn."""

    COMPLETE = "complete"  # the turn has its response, from this run or an earlier one
    UNDELIVERED = "undelivered"  # the turn has its response, but the channel does not
    FAILED = "failed"  # the turn has failed for good
    SUPERSEDED = "superseded"  # the turn continues under another epoch or id
    LATER = "later"  # the turn is due at `at`
    WAITING = "waiting"  # an older turn of the session is unfinished
    BUSY = "busy"  # another process runs the turn
    OVER = "over"  # the turn does not exist, or there is nothing to do


# For a turn that had already finished.
_FINISHED_STATUS = {
    State.COMPLETE: RunStatus.COMPLETE,
    State.FAILED: RunStatus.FAILED,
    State.SUPERSEDED: RunStatus.SUPERSEDED,
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of `Engine.run`.

    Attributes:
        ending: The result for the turn.
        at: The time at which the turn is due, if `ending` is `LATER`.
        next_turn: The id of the oldest unfinished turn of the same session, if this one is finished.
    """

    ending: RunStatus
    at: str | None = None
    next_turn: str | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """A running attempt of this process."""

    loaded: LoadedTurn
    claim: Claim
    brain_task: asyncio.Task[Json] | None = None
    interrupted: bool = False

    @property
    def turn(self) -> Turn:
        return self.loaded.turn


# Runs an attempt at a turn: calls it once and returns its result.
AttemptRunner: TypeAlias = Callable[[Turn, Callable[[], Awaitable[RunResult]]], Awaitable[RunResult]]


async def directly(_turn: Turn, attempt: Callable[[], Awaitable[RunResult]]) -> RunResult:
    """Run an attempt in this process, without a workflow engine."""
    return await attempt()


async def _no_step(_name: str, _turn: Turn) -> None:
    return


class Engine:
    """Runs attempts at turns. The runners of a process share one engine, which belongs to one event loop.

    Args:
        database: The hub's database.
        ledger: The ledger for claims on beats, tool calls and deliveries.
        brain: The brain that answers the turns.
        adapter: Sends responses to their channel; None if clients fetch them.
        max_attempts: The number of failures after which a turn has failed.
        beat_ttl_seconds: How long the response to a beat is remembered.
        lease_seconds: The lease of the claim on a beat.
        max_run_seconds: How long the claim is renewed; after that another process may take over.
        retry_seconds: The pauses after the first failure, the second and so on. The last one is repeated.
        observer: Counts and logs the checks of beats and tool calls.
        blobs: The store for large artifacts; None keeps them in the database.
        now: The clock.
        step: Called after each step of the table above, for tests.
        hint: Called after each commit that appended events.
        told: Called with the id of a turn that has changed or whose stream has a new chunk.
        ended: Called after that with a turn that is complete or has failed, and its messages.

    Attributes:
        database: The hub's database.
        now: The clock.
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
        step: Step = _no_step,
        hint: Callable[[], None] = lambda: None,
        told: Callable[[str], None] = lambda _: None,
        ended: Callable[[Turn, Sequence[Message]], None] = lambda _turn, _messages: None,
    ) -> None:
        self.database = database
        self.now = now
        self._ledger = ledger
        self._adapter = adapter
        self._repository = TurnRepository(database, now, delivers=adapter is not None)
        self._beat_claims = BeatClaims(ledger, beat_ttl_seconds, lease_seconds, observer)
        self._max_attempts = max_attempts
        self._max_run_seconds = max_run_seconds
        self._retry_seconds = tuple(retry_seconds)
        self._brain_runner = BrainRunner(
            database, ledger, brain, self._repository, observer=observer, blobs=blobs, now=now, notify=told
        )
        self._step = step
        self._hint = hint
        self._notify_turn = told
        self._hand_over = ended
        self._runs: dict[str, _Run] = {}

    @property
    def running(self) -> dict[str, int]:
        """The turns that run in this process, by id, with their epochs."""
        return {turn_id: run.turn.epoch for turn_id, run in self._runs.items()}

    def interrupt(self, turn_id: str) -> None:
        """Cancel the brain of a run in this process whose epoch has passed. Does nothing if the turn does not run here.

        Args:
            turn_id: The turn.
        """
        run = self._runs.get(turn_id)
        if run is not None:
            run.interrupted = True
            if run.brain_task is not None:
                run.brain_task.cancel()

    async def run(self, turn_id: str, through: AttemptRunner = directly) -> RunResult:
        """Do everything for this turn that can be done now, up to the end of one attempt.

        Args:
            turn_id: The turn.
            through: Runs the attempt, for example as a workflow. It must call the attempt once and return its result.

        Returns:
            The result. An exception of the brain or of the adapter is logged and becomes a result.

        Raises:
            errors.StoreUnavailable: The database or the ledger did not respond. The turn can be run again; this does
                not count as a failure.
        """
        loaded = await self._repository.begin_or_load(turn_id)
        if loaded is None:
            return RunResult(RunStatus.OVER)
        turn = loaded.turn
        if loaded.fresh:
            return await self.run_started(loaded, through)
        if turn.state is State.COMPLETE and turn.delivered_at is None:
            return await self._resume_delivery(loaded)
        if turn.state not in UNFINISHED:
            # The process that finished it may have died before it started the next one.
            return RunResult(_FINISHED_STATUS[turn.state], next_turn=await self._repository.next_turn(turn))
        if turn.accumulate_until > time_text(self.now()):
            return RunResult(RunStatus.LATER, turn.accumulate_until)
        if turn.state is State.ACCUMULATING:
            return RunResult(RunStatus.WAITING)
        return await self.take_over(loaded, through)

    async def run_started(self, loaded: LoadedTurn, through: AttemptRunner = directly) -> RunResult:
        """Run the first attempt of an epoch, which the transaction that loaded or stored the turn has started.

        Args:
            loaded: The turn with its messages.
            through: As for `run`.

        Returns:
            The result.

        Raises:
            errors.StoreUnavailable: The database or the ledger did not respond.
        """
        await self._step("started", loaded.turn)
        return await self._claim_and_run(loaded, through)

    async def take_over(self, loaded: LoadedTurn, through: AttemptRunner = directly) -> RunResult:
        """Take over a running turn if the process that ran it is gone.

        Args:
            loaded: The turn as the sweep found it.
            through: As for `run`.

        Returns:
            The result; `BUSY` if another process runs the turn.

        Raises:
            errors.StoreUnavailable: The database or the ledger did not respond.
        """
        return await self._claim_and_run(loaded, through)

    async def _claim_and_run(self, loaded: LoadedTurn, through: AttemptRunner) -> RunResult:
        found = await self._beat_claims.begin(loaded.turn, loaded.messages)
        if isinstance(found, Busy):
            return RunResult(RunStatus.BUSY)
        claim = found if isinstance(found, Claim) else None
        try:
            await self._step("claimed", loaded.turn)
            if not loaded.fresh:
                # The earlier process is gone. If it is only frozen, the new epoch fences it off.
                taken = await self._repository.restart(loaded)
                if taken is None:
                    await self._lapse(claim)
                    return RunResult(RunStatus.SUPERSEDED)
                loaded = taken
                await self._step("started", loaded.turn)
                if loaded.turn.attempts - loaded.turn.failures > BROKEN_OFF_MAX:
                    await self._lapse(claim)
                    return await self._record_failure(
                        loaded, f"gave up after {BROKEN_OFF_MAX} attempts without a result"
                    )
            if claim is not None:
                return await self._run_claimed(loaded, claim, through)
        except BaseException:
            # The row says how far the turn is. End the lease now, so that the next sweep need not wait for it.
            await self._lapse(claim)
            raise
        if isinstance(found, Replay):
            return await self._replay_response(loaded, found)
        return await self._record_failure(
            loaded, "the message ids of this turn were used before, for messages with other contents"
        )

    async def _lapse(self, claim: Claim | None) -> None:
        if claim is not None:
            try:
                await self._ledger.lapse(claim)
            except OncewardError as error:
                log_event(
                    _log.warning,
                    "beat_release_failed",
                    reason=str(error),
                    hint="another process can take over when the lease has lapsed",
                )

    # While the beat is claimed.

    async def _run_claimed(self, loaded: LoadedTurn, claim: Claim, through: AttemptRunner) -> RunResult:
        run = _Run(loaded, claim)
        self._runs[loaded.turn.id] = run
        renewal = start_renewal(
            self._ledger, claim, self._beat_claims.lease_seconds, self._beat_claims.ttl_seconds, self._max_run_seconds
        )
        try:
            return await through(run.turn, lambda: self._run_attempt(run))
        finally:
            del self._runs[loaded.turn.id]
            stop_renewal(self._ledger, renewal)

    async def _run_attempt(self, run: _Run) -> RunResult:
        try:
            await self._brain_runner.undo(run.loaded)
            await self._step("undone", run.turn)
            response = await self._run_brain(run)
        except Superseded:
            return await self._release_superseded(run)
        except StoreUnavailable:
            # Not a failure of the brain, so it is not counted as one.
            raise
        except Exception as error:  # noqa: BLE001  # user code may raise anything
            log_event(_log.error, "brain_failed", error, turn_id=run.turn.id, attempt=run.turn.attempts)
            return await self._fail(run, described(error))
        await self._step("answered", run.turn)
        done = await self._repository.respond(run.turn, response)
        if done is None:
            return await self._release_superseded(run)
        self._notify(done.turn, run.loaded.messages)
        await self._step("responded", done.turn)
        delivered = await self._deliver(done.turn)
        await self._beat_claims.settle(run.claim, done.turn)
        await self._step("settled", done.turn)
        return RunResult(_completion(delivered), next_turn=done.next_turn)

    async def _release_superseded(self, run: _Run) -> RunResult:
        """Give the claim back, and drop the result of a superseded run."""
        await self._ledger.release(run.claim)
        return RunResult(RunStatus.SUPERSEDED)

    async def _run_brain(self, run: _Run) -> str:
        """Return the brain's response as JSON text. Raises `Superseded` if the run was interrupted."""
        turn = run.turn
        run.brain_task = self._brain_runner.start(run.loaded)
        if run.interrupted:
            run.brain_task.cancel()
        try:
            await asyncio.wait({run.brain_task})
        except asyncio.CancelledError:
            run.brain_task.cancel()
            await asyncio.wait({run.brain_task})
            raise
        if run.interrupted:
            if not run.brain_task.cancelled():
                run.brain_task.exception()  # mark it as retrieved, so that asyncio does not log it
            raise Superseded(f"this run of the turn {turn.id} was superseded")
        if run.brain_task.cancelled():
            raise OncewardError("the brain cancelled its own task")
        return compact(to_json(run.brain_task.result()))

    async def _fail(self, run: _Run, failure: str) -> RunResult:
        rests = self._retry_seconds or (0.0,)
        rest = rests[min(run.turn.failures, len(rests) - 1)]
        ran = await self._record_failure(run.loaded, failure, self._max_attempts, rest)
        await self._ledger.fail(run.claim, failure)
        return ran

    async def _record_failure(self, loaded: LoadedTurn, failure: str, most: int = 0, rest: float = 0.0) -> RunResult:
        after = await self._repository.fail(loaded.turn, failure, most, rest)
        if after is None:
            return RunResult(RunStatus.SUPERSEDED)
        if after.turn.state is not State.FAILED:
            return RunResult(RunStatus.LATER, after.turn.accumulate_until)
        self._notify(after.turn, loaded.messages)
        return RunResult(RunStatus.FAILED, next_turn=after.next_turn)

    # After the response is recorded.

    async def _deliver(self, turn: Turn, first: str | None = None) -> bool:
        """Deliver the response, and return whether the channel has it. If it does not, the sweep tries again."""
        if turn.delivered_at is not None:
            return True
        if self._adapter is not None:
            try:
                await deliver(self._ledger, self._adapter, turn, first)
            except OncewardError as error:
                log_event(_log.warning, "response_not_delivered", turn_id=turn.id, reason=str(error))
                return False
            except Exception as error:  # noqa: BLE001  # user code may raise anything
                log_event(_log.error, "response_not_delivered", error, turn_id=turn.id, reason=str(error))
                return False
            await self._step("sent", turn)
        await self._repository.mark_delivered(turn)
        await self._step("delivered", turn)
        return True

    async def _replay_response(self, loaded: LoadedTurn, found: Replay) -> RunResult:
        """Record the response of another turn that has answered the same beat."""
        stored = await self._beat_claims.recorded_response(found)
        response = stored.response or await self._repository.response_of(stored.turn_id)
        if response is None:
            return await self._record_failure(
                loaded, f"the turn {stored.turn_id} answered these messages, but its response is no longer stored"
            )
        done = await self._repository.respond(loaded.turn, response, f"has the response of {stored.turn_id}")
        if done is None:
            return RunResult(RunStatus.SUPERSEDED)
        self._notify(done.turn, loaded.messages)
        await self._step("responded", done.turn)
        delivered = await self._deliver(done.turn, stored.turn_id)
        return RunResult(_completion(delivered), next_turn=done.next_turn)

    async def _resume_delivery(self, loaded: LoadedTurn) -> RunResult:
        """Deliver a recorded response that an earlier run did not deliver."""
        found = await self._beat_claims.begin(loaded.turn, loaded.messages)
        if isinstance(found, Busy):
            return RunResult(RunStatus.BUSY)
        delivered = await self._deliver(loaded.turn)
        if isinstance(found, Claim):
            await self._beat_claims.settle(found, loaded.turn)
            await self._step("settled", loaded.turn)
        return RunResult(_completion(delivered), next_turn=await self._repository.next_turn(loaded.turn))

    def _notify(self, turn: Turn, messages: Sequence[Message]) -> None:
        self._hint()
        self._notify_turn(turn.id)
        self._hand_over(turn, messages)


def _completion(delivered: bool) -> RunStatus:
    return RunStatus.COMPLETE if delivered else RunStatus.UNDELIVERED
