"""Audit of actions outside the hub's database: a row before the action, and a second one with its result.

    async with record_action(database, actor, "claim.resolve", claim_target(scope, key), {"version": 7}) as audit:
        claim = await resolve_claim(…)
        audit.details = outcome_details(claim)

If the first row cannot be written, the action is not done. If the process dies or the database fails in between, the
first row stays alone: the action may have happened. An action in the hub's database needs none of this; it calls
`log.append` in its own transaction.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.core.log_event import log_event
from onceward.errors import Conflict, InvalidInput, InvalidKey, InvalidOption, NotFound, OncewardError, TooLarge
from onceward.hub.audit.actor import Actor
from onceward.hub.audit.log import Details, Result, append
from onceward.hub.db.engine import Database, Transaction

logger = logging.getLogger("onceward.hub")

# Raised before anything is changed.
_REFUSALS = (Conflict, InvalidInput, InvalidKey, InvalidOption, NotFound, TooLarge)


@dataclass(slots=True)
class StartedAction:
    """An action that has a row `started`. `details` are those of its result; the action may set them."""

    actor: Actor
    action: str
    target: str | None
    details: Details
    started_id: int = 0

    def start(self, tx: Transaction) -> int:
        return append(tx, self.actor, self.action, self.target, self.details, result="started")

    def finish(self, tx: Transaction, result: Result, details: Details) -> None:
        append(tx, self.actor, self.action, self.target, details, result=result, started_id=self.started_id)


def claim_target(scope: str, key: str) -> str:
    """Return the target of an action on a claim, in the form of the command line: scope and key."""
    return f"{scope} {key}"


def outcome_details(claim: Mapping[str, Any]) -> Details:
    """Return the details of a claim after an action: its whole key, which may have been given in part, and its state."""
    return {name: claim[name] for name in ("key", "status", "version")}


@contextlib.asynccontextmanager
async def record_action(
    database: Database, actor: Actor, action: str, target: str | None, details: Details
) -> AsyncIterator[StartedAction]:
    """Write the row `started`, run the block, and write its result; for tasks of an event loop."""
    started = StartedAction(actor, action, target, details)
    started.started_id = await database.writer.run(started.start)
    started.details = {}
    try:
        yield started
    except Exception as error:
        await _finish(database, started, *_failure(error))
        raise
    # Nothing is written if the task is cancelled: whether the action happened is unknown.
    await _finish(database, started, "done", started.details)


@contextlib.contextmanager
def record_action_blocking(
    database: Database, actor: Actor, action: str, target: str | None, details: Details
) -> Iterator[StartedAction]:
    """Do the same as `record_action`, for threads and commands."""
    started = StartedAction(actor, action, target, details)
    started.started_id = database.writer.run_blocking(started.start)
    started.details = {}
    try:
        yield started
    except Exception as error:
        _finish_blocking(database, started, *_failure(error))
        raise
    _finish_blocking(database, started, "done", started.details)


async def _finish(database: Database, started: StartedAction, result: Result, details: Details) -> None:
    try:
        await database.writer.run(lambda tx: started.finish(tx, result, details))
    except OncewardError as error:
        _log_missing(started, result, error)


def _finish_blocking(database: Database, started: StartedAction, result: Result, details: Details) -> None:
    try:
        database.writer.run_blocking(lambda tx: started.finish(tx, result, details))
    except OncewardError as error:
        _log_missing(started, result, error)


def _failure(error: Exception) -> tuple[Result, Details]:
    code = error.code if isinstance(error, OncewardError) else type(error).__name__
    return "refused" if isinstance(error, _REFUSALS) else "unknown", {"error": code}


def _log_missing(started: StartedAction, result: Result, error: OncewardError) -> None:
    """The caller still gets the result of its action: it has happened, whatever became of its row."""
    fields = {"action": started.action, "audit_id": started.started_id, "result": result}
    log_event(logger.error, "audit_result_not_written", **fields, reason=str(error))
