"""Hatchet runner: a turn is a Hatchet workflow: acquire → accumulate → run_agent → commit_and_respond.

Hatchet decides when and on which worker a step runs, and repeats the step if that worker is gone. The steps have no
state between them: the turn's row says how far the turn is, and the claim on its beat says which process works on it.
So each step can run any number of times, on several workers at once, and next to the sweep.

    step                what it does                                          if repeated
    acquire             reads the turn, which must exist                      reads it again
    accumulate          waits until the turn is due                           waits for the rest of the time
    run_agent           runs attempts, with pauses, until the turn has ended  continues, or returns the same result
    commit_and_respond  starts the next turn, and delivers the response       returns the same response
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import onceward.hub.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.core.canonical import Json
from onceward.core.log_event import log_event
from onceward.errors import missing_extra
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.execution.engine import MAX_RUN_SECONDS, Engine, RunStatus
from onceward.hub.turns.model.turn import State, Turn, find_turn
from onceward.hub.turns.runners.local import WORKERS, LocalRunner

try:
    from hatchet_sdk import Context, Hatchet, NonRetryableException, Task
    from hatchet_sdk.runnables.workflow import Workflow
except ModuleNotFoundError as error:
    raise missing_extra(error, "onceward.turns.runners.hatchet", "hatchet") from error

WORKFLOW = "onceward-turn"
RETRIES = 10
# Longer than for other runners: Hatchet should run a turn first, because the sweep runs turns in this process.
SWEEP_SECONDS = 10.0
# How often to check whether another process has finished a turn.
_POLL_SECONDS = 1.0

_log = logging.getLogger("onceward.turns")


@dataclass(frozen=True, slots=True)
class TurnInput:
    """Input of the workflow.

    Attributes:
        turn_id: The turn to run.
    """

    turn_id: str


Output: TypeAlias = dict[str, Any]
TurnTask: TypeAlias = Task[TurnInput, Output]


@dataclass(frozen=True, slots=True)
class TurnWorkflow:
    """The Hatchet workflow of a turn.

    Attributes:
        workflow: The workflow, to be registered with a worker.
        acquire: The first step.
        accumulate: The second step.
        run_agent: The third step.
        commit_and_respond: The last step.
    """

    workflow: Workflow[TurnInput]
    acquire: TurnTask
    accumulate: TurnTask
    run_agent: TurnTask
    commit_and_respond: TurnTask

    async def start(self, turn_id: str) -> None:
        """Ask Hatchet to run a turn, without waiting for its end.

        Args:
            turn_id: The turn.

        Raises:
            Exception: Any exception of the Hatchet client, for example if Hatchet cannot be reached.
        """
        await self.workflow.aio_run(TurnInput(turn_id), wait_for_result=False)


class Undelivered(Exception):
    """The response was not delivered. Hatchet repeats the step."""


def turn_workflow(
    hatchet: Hatchet, engine: Engine, *, name: str = WORKFLOW, run_seconds: float = MAX_RUN_SECONDS
) -> TurnWorkflow:
    """Define the workflow that runs the turns of one engine.

    Args:
        hatchet: The Hatchet client.
        engine: The engine.
        name: The name of the workflow.
        run_seconds: The largest time for a turn with all its attempts.

    Returns:
        The workflow and its steps. Register `workflow` with a worker, and pass `start` to `HatchetRunner`.
    """
    steps = _Steps(engine)
    workflow = hatchet.workflow(name=name, input_validator=TurnInput)
    longest = datetime.timedelta(seconds=run_seconds)

    @workflow.task(retries=RETRIES)
    async def acquire(wanted: TurnInput, _context: Context) -> Output:
        return _turn_output(await steps.turn(wanted.turn_id))

    @workflow.task(parents=[acquire], retries=RETRIES, execution_timeout=longest)
    async def accumulate(wanted: TurnInput, _context: Context) -> Output:
        return _turn_output(await steps.wait_until_due(wanted.turn_id))

    @workflow.task(parents=[accumulate], retries=RETRIES, execution_timeout=longest)
    async def run_agent(wanted: TurnInput, _context: Context) -> Output:
        status, next_turn = await steps.run_to_end(wanted.turn_id)
        return {"ending": status.value, "next_turn": next_turn}

    @workflow.task(parents=[run_agent], retries=RETRIES, backoff_factor=2.0, backoff_max_seconds=60)
    async def commit_and_respond(wanted: TurnInput, context: Context) -> Output:
        next_turn = context.task_output(run_agent)["next_turn"]
        if next_turn is not None:
            await workflow.aio_run(TurnInput(next_turn), wait_for_result=False)
        return _response(await steps.deliver(wanted.turn_id))

    return TurnWorkflow(workflow, acquire, accumulate, run_agent, commit_and_respond)


class _Steps:
    """The work of the steps, without Hatchet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def turn(self, turn_id: str) -> Turn:
        turn = await in_thread(self._find, turn_id)
        if turn is None:
            raise NonRetryableException(f"turn {turn_id!r} does not exist")
        return turn

    async def wait_until_due(self, turn_id: str) -> Turn:
        """Wait until the turn is due, and return it. Each message that joins it moves the time, so it is read again."""
        while True:
            turn = await self.turn(turn_id)
            seconds = self._seconds_until(turn.accumulate_until)
            if turn.state is not State.ACCUMULATING or seconds <= 0:
                return turn
            await asyncio.sleep(seconds)

    async def run_to_end(self, turn_id: str) -> tuple[RunStatus, str | None]:
        """Run the turn to its end; return the result and the next turn of the session.

        A turn that waits for an older one is not waited for: the workflow of the older turn starts it.
        """
        while True:
            ran = await self._engine.run(turn_id)
            if ran.ending is RunStatus.LATER and ran.at is not None:
                await asyncio.sleep(max(self._seconds_until(ran.at), 0.0))
            elif ran.ending is RunStatus.BUSY:
                await asyncio.sleep(_POLL_SECONDS)
            elif ran.ending is not RunStatus.SUPERSEDED or (await self.turn(turn_id)).state is State.SUPERSEDED:
                return ran.ending, ran.next_turn

    async def deliver(self, turn_id: str) -> Turn:
        turn = await self.turn(turn_id)
        if turn.state is State.COMPLETE and turn.delivered_at is None:
            ran = await self._engine.run(turn_id)
            if ran.ending in {RunStatus.UNDELIVERED, RunStatus.BUSY}:
                raise Undelivered(f"the response of the turn {turn_id} was not delivered")
        return turn

    def _find(self, turn_id: str) -> Turn | None:
        with self._engine.database.read() as tx:
            return find_turn(tx, turn_id)

    def _seconds_until(self, at: str) -> float:
        return (datetime.datetime.fromisoformat(at) - self._engine.now()).total_seconds()


def _turn_output(turn: Turn) -> Output:
    return {"turn_id": turn.id, "state": turn.state.value, "epoch": turn.epoch}


def _response(turn: Turn) -> Output:
    answer: Json = turn.answer
    return {**_turn_output(turn), "response": answer, "failure": turn.failure, "superseded_by": turn.superseded_by}


class HatchetRunner:
    """Asks Hatchet to run turns, and sweeps the database like every runner.

    The sweep runs turns in this process that Hatchet could not be asked to run, and interrupts runs of this process
    that another process superseded.

    Args:
        engine: The engine.
        begin: Asks Hatchet to run a turn: the `start` of a `TurnWorkflow`.
        workers: The number of turns from the sweep that run here at the same time.
        sweep_seconds: The pause between two sweeps of the database.
    """

    def __init__(
        self,
        engine: Engine,
        begin: Callable[[str], Awaitable[None]],
        *,
        workers: int = WORKERS,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self._begin = begin
        self._local = LocalRunner(engine, workers=workers, sweep_seconds=sweep_seconds)
        self._starting: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Start to sweep the database."""
        await self._local.start()

    def wake(self, turn_id: str) -> None:
        """Ask Hatchet in the background to run this turn. If that fails, it is logged, and the sweep runs the turn.

        Args:
            turn_id: The turn.
        """
        if self._stopping:
            return
        task = asyncio.create_task(self._start_workflow(turn_id), name=f"hatchet start of {turn_id}")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def interrupt(self, turn_id: str) -> None:
        """Cancel a run of this turn in this process, because its epoch has passed.

        Args:
            turn_id: The turn.
        """
        self._local.interrupt(turn_id)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Ask Hatchet for nothing more, let the sweep's runs finish, and cancel the rest. Others take them over.

        Args:
            grace_seconds: How long to wait for runs in progress.
        """
        self._stopping = True
        for task in self._starting:
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        await self._local.stop(grace_seconds)

    async def idle(self) -> None:
        """Wait until Hatchet has been asked for every turn, and no run of the sweep is in progress."""
        while self._starting:
            await asyncio.wait(self._starting)
        await self._local.idle()

    async def sweep_once(self) -> None:
        """Sweep once: start turns that nobody runs, and interrupt runs of this process that were superseded.

        Raises:
            errors.StoreUnavailable: The database did not respond.
        """
        await self._local.sweep_once()

    async def _start_workflow(self, turn_id: str) -> None:
        try:
            await self._begin(turn_id)
        except Exception as error:  # noqa: BLE001  # the Hatchet client may raise anything
            log_event(
                _log.warning,
                "hatchet_start_failed",
                turn_id=turn_id,
                reason=str(error),
                hint="the next sweep runs the turn",
            )
