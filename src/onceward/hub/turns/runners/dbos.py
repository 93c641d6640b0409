"""DBOS runner: each attempt at a turn is a DBOS workflow on PostgreSQL, which can be listed and counted.

As with every runner, the row, the claim on the beat and the sweep decide which process runs a turn and what happens
after a crash. DBOS has its own recovery: it runs the workflows again that a process with the same name left, even if
that process is alive. So every process has a unique name, and that recovery finds nothing. An attempt becomes a
workflow after it was started in the row. The row's number of attempts is part of the workflow id, so no id is used
twice, and none waits for a dead process.
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import onceward.hub.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.errors import missing_extra
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.execution.engine import Engine, RunResult, RunStatus
from onceward.hub.turns.execution.repository import LoadedTurn
from onceward.hub.turns.model.turn import Turn
from onceward.hub.turns.runners.local import SWEEP_SECONDS, WORKERS, LocalRunner

try:
    from dbos import DBOS, DBOSConfig, SetWorkflowID
except ModuleNotFoundError as error:
    raise missing_extra(error, "onceward.turns.runners.dbos", "dbos") from error

APPLICATION = "onceward"
# Fixed: DBOS would compute a version from the source code, and every release would be another application.
APPLICATION_VERSION = "1"

_Attempt: TypeAlias = Callable[[], Awaitable[RunResult]]
_attempt: contextvars.ContextVar[_Attempt | None] = contextvars.ContextVar("onceward_turn_attempt", default=None)


def workflow_id(turn_id: str, attempt: int) -> str:
    """Return the id of the workflow of an attempt, counted from 1."""
    return f"{turn_id}:{attempt}"


@DBOS.workflow(name="onceward.turn")
async def _turn_workflow(_turn_id: str) -> dict[str, str | None]:
    return await _attempt_step()


@DBOS.step(name="onceward.turn.attempt")
async def _attempt_step() -> dict[str, str | None]:
    attempt = _attempt.get()
    # Without an attempt, somebody resumed the workflow in DBOS. There is nothing to do: the sweep runs the turn.
    ran = RunResult(RunStatus.OVER) if attempt is None else await attempt()
    # Plain values, which later releases can read.
    return {"ending": ran.ending.value, "at": ran.at, "next_turn": ran.next_turn}


async def _through_dbos(turn: Turn, attempt: _Attempt) -> RunResult:
    if turn.attempts > 1:
        # The previous attempt has ended, or its process is gone. Its workflow must not look as if it were running.
        await DBOS.cancel_workflow_async(workflow_id(turn.id, turn.attempts - 1))
    token = _attempt.set(attempt)
    try:
        with SetWorkflowID(workflow_id(turn.id, turn.attempts)):
            found = await _turn_workflow(turn.id)
    finally:
        _attempt.reset(token)
    return RunResult(RunStatus(found["ending"] or RunStatus.OVER), found["at"], found["next_turn"])


class DbosRunner:
    """Runs turns as DBOS workflows.

    DBOS can be launched only once per process, so a process can have one such runner and no other use of DBOS.

    Args:
        engine: The engine.
        database_url: The PostgreSQL database in which DBOS has its tables, in the schema `dbos`.
        workers: The number of turns that run at the same time; others wait.
        sweep_seconds: The pause between two sweeps of the database.

    Attributes:
        executor_id: The name of this process in DBOS.
    """

    def __init__(
        self,
        engine: Engine,
        database_url: str,
        *,
        workers: int = WORKERS,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        self.executor_id = f"onceward-{uuid.uuid4()}"
        self._config = DBOSConfig(
            name=APPLICATION,
            system_database_url=database_url,
            application_version=APPLICATION_VERSION,
            executor_id=self.executor_id,
            log_level="WARNING",
        )
        self._local = LocalRunner(engine, workers=workers, sweep_seconds=sweep_seconds, through=_through_dbos)

    async def start(self) -> None:
        """Launch DBOS and start to sweep the database. The first start in a database creates the tables of DBOS."""
        await in_thread(self._launch)
        await self._local.start()

    def wake(self, turn_id: str) -> None:
        """Run this turn soon, if it can run.

        Args:
            turn_id: The turn.
        """
        self._local.wake(turn_id)

    def reserve(self, turn_id: str) -> bool:
        """Return whether this turn would run soon if it were started now. Then `run_started` or `give_up` must follow.

        Args:
            turn_id: The turn, which is about to be stored.
        """
        return self._local.reserve(turn_id)

    def run_started(self, loaded: LoadedTurn) -> None:
        """Run a turn whose first attempt was started in the transaction that stored it.

        Args:
            loaded: The turn with its messages.
        """
        self._local.run_started(loaded)

    def give_up(self, turn_id: str) -> None:
        """Forget a reserved turn, because it was not stored.

        Args:
            turn_id: The turn.
        """
        self._local.give_up(turn_id)

    def interrupt(self, turn_id: str) -> None:
        """Cancel a run of this turn in this process, because its epoch has passed.

        Args:
            turn_id: The turn.
        """
        self._local.interrupt(turn_id)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Start no more runs, let those in progress finish, cancel the rest, and shut DBOS down.

        Args:
            grace_seconds: How long to wait for runs in progress.
        """
        await self._local.stop(grace_seconds)
        await in_thread(DBOS.destroy)
        # DBOS replaced the loop's default executor and has shut its own down: `asyncio.to_thread` needs a new one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))

    async def idle(self) -> None:
        """Wait until no turn runs in this process."""
        await self._local.idle()

    async def sweep_once(self) -> None:
        """Sweep once: start turns that nobody runs, and interrupt runs of this process that were superseded.

        Raises:
            errors.StoreUnavailable: The database did not respond.
        """
        await self._local.sweep_once()

    def _launch(self) -> None:
        DBOS(config=self._config)
        DBOS.launch()
