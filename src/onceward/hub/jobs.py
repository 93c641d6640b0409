"""What a hub does by itself, from time to time. Of all processes on one ledger, one does it."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from onceward.db.clock import time_text
from onceward.db.engine import Database
from onceward.errors import OncewardError
from onceward.events import log
from onceward.tasks import gc_blobs
from onceward.turns.artifacts import purge_artifacts

if TYPE_CHECKING:
    from onceward.hub.state import Hub

logger = logging.getLogger("onceward.hub")

_PURGE_SECONDS = 3600.0
# How often a process of the hub purges its ledger and puts lapsed claims in doubt, whether or not requests come.
LEDGER_SECONDS = 60.0


class Stopped(Exception):  # not an error: the hub stops
    """Ends a job between two of its steps."""


def periodic(hub: Hub) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """The jobs that this configuration asks for, by name."""
    events, attachments = hub.config.events, hub.config.attachments

    def go_on(_done: int) -> None:
        if hub.stopping.is_set():
            raise Stopped

    def retention() -> int:
        return delete_old_events(hub.database, datetime.timedelta(days=events.keep_days), go_on)

    def collection() -> int:
        collected = gc_blobs(
            hub.database,
            hub.blobs,
            dry_run=False,
            batch_size=attachments.gc_batch_size,
            grace_seconds=attachments.gc_grace,
            progress=go_on,
        )
        hub.feed.hint()
        return collected.deleted_count

    wanted = [
        ("events-retention", events.retention_interval if events.keep_days else 0, retention),
        ("blobs-collection", attachments.gc_interval, collection),
        ("artifacts-purge", _PURGE_SECONDS, lambda: purge_old_artifacts(hub.database, go_on)),
    ]
    return [(name, _again(hub, name, seconds, job)) for name, seconds, job in wanted if seconds]


def delete_old_events(
    database: Database, age: datetime.timedelta, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Delete events older than this, in small transactions; gives how many."""
    before = time_text(datetime.datetime.now(datetime.UTC) - age)
    deleted = 0
    while True:
        with database.write() as tx:
            batch = log.retain(tx, before)
        if batch == 0:
            return deleted
        deleted += batch
        progress(batch)


def purge_old_artifacts(database: Database, progress: Callable[[int], None] = lambda _: None) -> int:
    """Delete artifacts whose time is over, in small transactions; gives how many."""
    deleted = 0
    while True:
        with database.write() as tx:
            batch = purge_artifacts(tx, datetime.datetime.now(datetime.UTC))
        if batch == 0:
            return deleted
        deleted += batch
        progress(batch)


async def _again(hub: Hub, name: str, seconds: float, job: Callable[[], int]) -> None:
    """Run a job every so many seconds. The outcome of the one who ran it answers the others until it is due again."""

    async def ran() -> int:
        thread = asyncio.get_running_loop().run_in_executor(None, job)
        try:
            done = await asyncio.shield(thread)
        except asyncio.CancelledError:
            # It hears that the hub stops between two batches; until then it uses the database.
            await asyncio.wait({thread})
            raise
        logger.info("job_done", extra={"job": name, "count": done})
        return done

    while True:
        try:
            # Due a little earlier than the next look, or that look would find the last outcome still there.
            await hub.ledger.run(f"job:{name}", ran, effect="idempotent", retain_seconds=seconds * 0.9)
        except Stopped:
            return
        except OncewardError as error:
            logger.warning("job_failed", extra={"job": name, "reason": str(error)})
        except Exception:  # a bug, or a database that refuses; without this loop the job never runs again
            logger.exception("job_failed", extra={"job": name})
        await asyncio.sleep(seconds)
