"""Runs turns as DBOS workflows on PostgreSQL: each attempt of a turn is a workflow that can be seen, listed and counted.

Who runs a turn, and what happens after a crash, is decided as everywhere: by the row, by the claim on the beat, and by
the sweep. DBOS would also run again what a process of the same name has left, live or not; so every process has a name
of its own, and that finds nothing. An attempt becomes a workflow after it has begun in the row, whose count of attempts
is part of the workflow's id: no id is used twice, and none waits for a process that is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import onceward.db.engine  # noqa: F401  # first: without the extra, its error says what to install
from onceward.errors import missing_extra
from onceward.turns.engine import Ending, Engine, Ran
from onceward.turns.runners.local import SWEEP_SECONDS, WORKERS, LocalRunner
from onceward.turns.threads import in_thread
from onceward.turns.turn import Turn

try:
    from dbos import DBOS, DBOSConfig, SetWorkflowID
except ModuleNotFoundError as error:
    raise missing_extra(error, __name__, "dbos") from error

APPLICATION = "onceward"
# Fixed: by itself, DBOS makes one of the source code, and every release would be another application.
APPLICATION_VERSION = "1"

_Attempt: TypeAlias = Callable[[], Awaitable[Ran]]
_attempt: contextvars.ContextVar[_Attempt | None] = contextvars.ContextVar("onceward_turn_attempt", default=None)


def workflow_id(turn_id: str, attempt: int) -> str:
    """The id of the workflow that is this attempt of the turn, counted from 1."""
    return f"{turn_id}:{attempt}"


@DBOS.workflow(name="onceward.turn")
async def _turn_workflow(_turn_id: str) -> dict[str, str | None]:
    return await _attempt_step()


@DBOS.step(name="onceward.turn.attempt")
async def _attempt_step() -> dict[str, str | None]:
    attempt = _attempt.get()
    # Without one, somebody asked DBOS to run it again. Its turn is in the sweep's hands.
    ran = Ran(Ending.OVER) if attempt is None else await attempt()
    # As plain values, which releases to come can read.
    return {"ending": ran.ending.value, "at": ran.at, "next_turn": ran.next_turn}


async def _through_dbos(turn: Turn, attempt: _Attempt) -> Ran:
    if turn.attempts > 1:
        # Whoever made the last attempt is done with it, or gone: its workflow must not look as if it went on.
        await DBOS.cancel_workflow_async(workflow_id(turn.id, turn.attempts - 1))
    token = _attempt.set(attempt)
    try:
        with SetWorkflowID(workflow_id(turn.id, turn.attempts)):
            found = await _turn_workflow(turn.id)
    finally:
        _attempt.reset(token)
    return Ran(Ending(found["ending"] or Ending.OVER), found["at"], found["next_turn"])


class DbosRunner:
    """`database_url` is the PostgreSQL database where DBOS keeps its tables, in a schema of its own.

    DBOS can be launched once in a process: there is one such runner, and nobody else uses DBOS beside it.
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
        """Begin, with what others left unfinished. The first start in a database makes the tables of DBOS."""
        await in_thread(self._launch)
        await self._local.start()

    def wake(self, turn_id: str) -> None:
        self._local.wake(turn_id)

    def interrupt(self, turn_id: str) -> None:
        self._local.interrupt(turn_id)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        await self._local.stop(grace_seconds)
        await in_thread(DBOS.destroy)
        # DBOS made its own threads those of the loop, and has ended them: `asyncio.to_thread` needs others.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))

    async def idle(self) -> None:
        """Returns when no run goes on here."""
        await self._local.idle()

    async def sweep_once(self) -> None:
        """Look once for what nobody runs, and for what is superseded here."""
        await self._local.sweep_once()

    def _launch(self) -> None:
        DBOS(config=self._config)
        DBOS.launch()
