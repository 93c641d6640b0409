"""Runs turns as Hatchet workflows: acquire → accumulate → run_agent → commit_and_respond.

Hatchet decides when and on which worker a step runs, and runs it again when that worker is gone. The steps keep nothing
between them: the turn's row says how far it is, and the claim on its beat says who works on it, so that each step can
be run any number of times, by several workers at once, and by the sweep beside them.

    step                what it does                                        run again
    acquire             sees that there is a turn, and how it stands        sees it again
    accumulate          waits until no more messages are waited for         waits for what is left
    run_agent           attempts, with their rests, up to the turn's end    goes on, or gives the same ending and next turn
    commit_and_respond  gives the response that is recorded and delivered   gives the same
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import onceward.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.core.canonical import Json
from onceward.errors import missing_extra
from onceward.turns.engine import MAX_RUN_SECONDS, Ending, Engine
from onceward.turns.runners.local import WORKERS, LocalRunner
from onceward.turns.threads import in_thread
from onceward.turns.turn import State, Turn, find_turn

try:
    from hatchet_sdk import Context, Hatchet, NonRetryableException, Task
    from hatchet_sdk.runnables.workflow import Workflow
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "hatchet") from error

WORKFLOW = "onceward-turn"
RETRIES = 10
# Hatchet has the first go: what a sweep finds, it runs itself.
SWEEP_SECONDS = 10.0
# How often to look whether somebody else is done with a turn.
_LOOK_SECONDS = 1.0

_log = logging.getLogger("onceward.turns")


@dataclass(frozen=True, slots=True)
class TurnInput:
    """What a run of the workflow is given."""

    turn_id: str


Output: TypeAlias = dict[str, Any]
TurnTask: TypeAlias = Task[TurnInput, Output]


@dataclass(frozen=True, slots=True)
class TurnWorkflow:
    """The workflow, to be given to a worker, and its four steps."""

    workflow: Workflow[TurnInput]
    acquire: TurnTask
    accumulate: TurnTask
    run_agent: TurnTask
    commit_and_respond: TurnTask

    async def start(self, turn_id: str) -> None:
        """Ask Hatchet to run a turn."""
        await self.workflow.aio_run(TurnInput(turn_id), wait_for_result=False)


class Undelivered(Exception):
    """The channel does not take the response for now; Hatchet tries the step again."""


def turn_workflow(
    hatchet: Hatchet, engine: Engine, *, name: str = WORKFLOW, run_seconds: float = MAX_RUN_SECONDS
) -> TurnWorkflow:
    """The workflow that runs the turns of one engine; `run_seconds` are what a turn may take with all its attempts."""
    steps = _Steps(engine)
    workflow = hatchet.workflow(name=name, input_validator=TurnInput)
    longest = datetime.timedelta(seconds=run_seconds)

    @workflow.task(retries=RETRIES)
    async def acquire(wanted: TurnInput, _context: Context) -> Output:
        return _standing(await steps.turn(wanted.turn_id))

    @workflow.task(parents=[acquire], retries=RETRIES, execution_timeout=longest)
    async def accumulate(wanted: TurnInput, _context: Context) -> Output:
        return _standing(await steps.accumulated(wanted.turn_id))

    @workflow.task(parents=[accumulate], retries=RETRIES, execution_timeout=longest)
    async def run_agent(wanted: TurnInput, _context: Context) -> Output:
        ending, next_turn = await steps.ended(wanted.turn_id)
        return {"ending": ending.value, "next_turn": next_turn}

    @workflow.task(parents=[run_agent], retries=RETRIES, backoff_factor=2.0, backoff_max_seconds=60)
    async def commit_and_respond(wanted: TurnInput, context: Context) -> Output:
        next_turn = context.task_output(run_agent)["next_turn"]
        if next_turn is not None:
            await workflow.aio_run(TurnInput(next_turn), wait_for_result=False)
        return _response(await steps.delivered(wanted.turn_id))

    return TurnWorkflow(workflow, acquire, accumulate, run_agent, commit_and_respond)


class _Steps:
    """The steps, as far as they have nothing to do with Hatchet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def turn(self, turn_id: str) -> Turn:
        turn = await in_thread(self._find, turn_id)
        if turn is None:
            raise NonRetryableException(f"there is no turn {turn_id!r}")
        return turn

    async def accumulated(self, turn_id: str) -> Turn:
        """The turn when it is due. Each message that joins it puts that off, so it is looked at again."""
        while True:
            turn = await self.turn(turn_id)
            left = self._left(turn.accumulate_until)
            if turn.state is not State.ACCUMULATING or left <= 0:
                return turn
            await asyncio.sleep(left)

    async def ended(self, turn_id: str) -> tuple[Ending, str | None]:
        """How the turn ended, and the turn of its session that is next. One that waits for an older turn is left: its
        run is started by that turn's.
        """
        while True:
            ran = await self._engine.run(turn_id)
            if ran.ending is Ending.LATER and ran.at is not None:
                await asyncio.sleep(max(self._left(ran.at), 0.0))
            elif ran.ending is Ending.BUSY:
                await asyncio.sleep(_LOOK_SECONDS)
            elif ran.ending is not Ending.SUPERSEDED or (await self.turn(turn_id)).state is State.SUPERSEDED:
                return ran.ending, ran.next_turn

    async def delivered(self, turn_id: str) -> Turn:
        turn = await self.turn(turn_id)
        if turn.state is State.COMPLETE and turn.delivered_at is None:
            ran = await self._engine.run(turn_id)
            if ran.ending in {Ending.UNDELIVERED, Ending.BUSY}:
                raise Undelivered(turn_id)
        return turn

    def _find(self, turn_id: str) -> Turn | None:
        with self._engine.database.read() as tx:
            return find_turn(tx, turn_id)

    def _left(self, moment: str) -> float:
        return (datetime.datetime.fromisoformat(moment) - self._engine.now()).total_seconds()


def _standing(turn: Turn) -> Output:
    return {"turn_id": turn.id, "state": turn.state.value, "epoch": turn.epoch}


def _response(turn: Turn) -> Output:
    answer: Json = turn.answer
    return {**_standing(turn), "response": answer, "failure": turn.failure, "superseded_by": turn.superseded_by}


class HatchetRunner:
    """Asks Hatchet to run what is woken, by `begin`: a workflow's `start`. Sweeps as every runner does: what Hatchet was
    not asked for, because it did not answer, is run here, and runs that are superseded elsewhere are interrupted.
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
        self._asking: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        await self._local.start()

    def wake(self, turn_id: str) -> None:
        """Ask Hatchet to run this turn."""
        if self._stopping:
            return
        task = asyncio.create_task(self._ask(turn_id), name=f"asking for {turn_id}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def interrupt(self, turn_id: str) -> None:
        self._local.interrupt(turn_id)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        self._stopping = True
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.wait(self._asking)
        await self._local.stop(grace_seconds)

    async def idle(self) -> None:
        """Returns when nothing is asked for and no run of the sweep goes on here."""
        while self._asking:
            await asyncio.wait(self._asking)
        await self._local.idle()

    async def sweep_once(self) -> None:
        """Look once for what nobody runs, and for what is superseded here."""
        await self._local.sweep_once()

    async def _ask(self, turn_id: str) -> None:
        try:
            await self._begin(turn_id)
        except Exception as error:  # noqa: BLE001  # whatever keeps Hatchet from answering
            _log.warning("Hatchet was not asked to run a turn, the sweep will: %s", error, extra={"turn_id": turn_id})
