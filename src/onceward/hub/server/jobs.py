"""Periodic jobs of a hub. Each job runs in only one of the processes that share a ledger."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from onceward.core.log_event import log_event
from onceward.errors import OncewardError
from onceward.hub.audit import log as audit_log
from onceward.hub.audit.actor import HUB_JOB
from onceward.hub.claims.claims import namespaces
from onceward.hub.db.engine import Database
from onceward.hub.db.timestamps import time_text
from onceward.hub.events import log
from onceward.hub.monitoring.doubts import SCAN_SECONDS, purge_doubts
from onceward.hub.tasks import gc_blobs
from onceward.hub.turns.artifacts.artifacts import purge_artifacts
from onceward.store.failure_streak import FailureStreak

if TYPE_CHECKING:
    from onceward.hub.config.config import Config
    from onceward.hub.state import HubState
    from onceward.ledger.ledger import Ledger

logger = logging.getLogger("onceward.hub")

_PURGE_SECONDS = 3600.0
# A job that runs more often than this is logged only if it did something.
_QUIET_BELOW_SECONDS = 60.0
# The default of `idempotency.key_prefix` in earlier versions.
_FORMER_NAMESPACE = "onceward"
# Interval at which each process purges its ledger and puts lapsed claims in doubt, even without requests.
LEDGER_SECONDS = 60.0


class Stopped(Exception):  # not an error: the hub stops
    """Raised in a job between two batches, to end it."""


def periodic(hub: HubState) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Return the enabled jobs with their names.

    A job that deleted what users or operators stored appends an entry to the audit log. The other jobs delete what has
    served its purpose: expired artifacts, which are a cache, and the rows of doubts that were resolved a month ago.
    """
    events, attachments = hub.config.events, hub.config.attachments

    def check_stopping(_done: int) -> None:
        if hub.stopping.is_set():
            raise Stopped

    def audited(action: str, deleted: int, details: audit_log.Details) -> None:
        if deleted:
            hub.database.writer.run_blocking(lambda tx: audit_log.append(tx, HUB_JOB, action, None, details))

    def retention() -> int:
        deleted = delete_old_events(hub.database, datetime.timedelta(days=events.keep_days), check_stopping)
        audited("events.retain", deleted, {"deleted_count": deleted, "keep_days": events.keep_days})
        return deleted

    def gc() -> int:
        collected = gc_blobs(
            hub.database,
            hub.blobs,
            dry_run=False,
            batch_size=attachments.gc_batch_size,
            grace_seconds=attachments.gc_grace,
            progress=check_stopping,
        )
        hub.feed.notify()
        deleted = collected.deleted_count + collected.expired_count + collected.orphan_count
        audited("blobs.gc", deleted, {**collected.json(), "grace_seconds": attachments.gc_grace})
        return collected.deleted_count

    def audit_retention() -> int:
        keep_days = hub.config.hub.audit_keep_days
        deleted = delete_old_audit_rows(hub.database, datetime.timedelta(days=keep_days), check_stopping)
        audited("audit.retain", deleted, {"deleted_count": deleted, "keep_days": keep_days})
        return deleted

    def doubts() -> int:
        return hub.doubts.scan(hub.ledger, check_stopping)

    wanted = [
        ("audit-retention", _PURGE_SECONDS if hub.config.hub.audit_keep_days else 0, audit_retention),
        ("events-retention", events.retention_interval if events.keep_days else 0, retention),
        ("blobs-collection", attachments.gc_interval, gc),
        ("artifacts-purge", _PURGE_SECONDS, lambda: purge_old_artifacts(hub.database, check_stopping)),
        ("doubts-scan", SCAN_SECONDS, doubts),
        ("doubts-purge", _PURGE_SECONDS, lambda: purge_doubts(hub.database)),
    ]
    return [(name, _run_periodically(hub, name, seconds, job)) for name, seconds, job in wanted if seconds]


async def warn_of_former_entries(config: Config, ledger: Ledger) -> None:
    """Warn once if the ledger has entries under the default namespace of earlier versions."""
    if ("idempotency", "key_prefix") in config.sources or ledger.namespace == _FORMER_NAMESPACE:
        return
    try:
        found = await namespaces(ledger)
    except OncewardError:
        # Not reported here: a request that needs the ledger reports the same error.
        return
    if _FORMER_NAMESPACE in found:
        log_event(
            logger.warning,
            "former_entries_ignored",
            namespace=ledger.namespace,
            former_namespace=_FORMER_NAMESPACE,
            reason=(
                "the default of idempotency.key_prefix has changed, and the ledger has entries under the former one: "
                "a retry of an earlier request runs again, and earlier doubts are not shown"
            ),
            hint=(
                f'to use these entries, set idempotency.key_prefix = "{_FORMER_NAMESPACE}"; '
                f'if another application wrote them, set idempotency.key_prefix = "{ledger.namespace}"'
            ),
        )


def delete_old_events(
    database: Database, age: datetime.timedelta, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Delete events older than this, in small transactions. Return their number."""
    before = time_text(datetime.datetime.now(datetime.UTC) - age)
    deleted = 0
    while True:
        with database.write() as tx:
            batch = log.delete_old_events(tx, before)
        if batch == 0:
            return deleted
        deleted += batch
        progress(batch)


def delete_old_audit_rows(
    database: Database, age: datetime.timedelta, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Delete rows of the audit log older than this, in small transactions. Return their number."""
    deleted = 0
    while True:
        with database.write() as tx:
            batch = audit_log.delete_old_rows(tx, age)
        if batch == 0:
            return deleted
        deleted += batch
        progress(batch)


def purge_old_artifacts(database: Database, progress: Callable[[int], None] = lambda _: None) -> int:
    """Delete expired artifacts, in small transactions. Return their number."""
    deleted = 0
    while True:
        with database.write() as tx:
            batch = purge_artifacts(tx, datetime.datetime.now(datetime.UTC))
        if batch == 0:
            return deleted
        deleted += batch
        progress(batch)


async def _run_periodically(hub: HubState, name: str, seconds: float, job: Callable[[], int]) -> None:
    """Run a job periodically. The ledger lets one process run it; the others get its outcome until it is due again."""

    async def run_once() -> int:
        thread = asyncio.get_running_loop().run_in_executor(None, job)
        try:
            done = await asyncio.shield(thread)
        except asyncio.CancelledError:
            # The job ends after its current batch. Wait for it, because it uses the database until then.
            await asyncio.wait({thread})
            raise
        if done or seconds >= _QUIET_BELOW_SECONDS:
            log_event(logger.info, "job_done", job=name, count=done)
        return done

    streak = FailureStreak()
    while True:
        try:
            # The outcome expires a little before the next attempt, which would otherwise still find it.
            await hub.ledger.run(f"job:{name}", run_once, effect="idempotent", retain_seconds=seconds * 0.9)
        except Stopped:
            return
        except OncewardError as error:
            if (count := streak.failed(error)) is not None:
                log_event(logger.warning, "job_failed", job=name, reason=str(error), failure_count=count)
        except Exception as error:  # noqa: BLE001  # a bug or a database error; the job must run again later
            if (count := streak.failed(error)) is not None:
                log_event(logger.error, "job_failed", error, job=name, failure_count=count)
        else:
            if (ended := streak.succeeded()) is not None:
                log_event(
                    logger.info,
                    "job_recovered",
                    job=name,
                    failure_count=ended.failure_count,
                    seconds=ended.seconds,
                )
        await asyncio.sleep(seconds)
