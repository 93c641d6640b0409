"""The record of doubts: each claim that goes in doubt is one row, with one event when it appears and one when it ends.

Theory of operation
===================

The ledger and the hub's database may be two stores, so no transaction covers both. A doubt exists as soon as the ledger
has it. It reaches the record in one of two ways, and its row makes sure that the second one changes nothing:

    at once     the process that put the claim in doubt inserts the row and appends `claim.in_doubt`, in one transaction
    the scan    every 30 seconds, one process compares the doubts of the ledger with the rows without `resolved_at`

The end of a doubt is recorded in the same ways: by the route that resolves it, or by the scan, which also finds late
results of holders, verdicts of reconcile hooks, and commands that use the ledger directly.

So a process that is killed after its write to the ledger delays the event by one scan. Only a doubt that is also resolved
before that scan is never recorded. A hub that is not running records nothing; it catches up when it starts.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from onceward.core.claim import Entry, Ref, Status
from onceward.core.json_text import compact
from onceward.core.log_event import log_event
from onceward.core.record import record
from onceward.errors import OncewardError
from onceward.hub.db.append import EventSteps, NewEvent
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import now_text, time_text
from onceward.ledger.blocking import wait
from onceward.ledger.doubts import LogKeys, doubt_fields, shown_key
from onceward.ledger.internals import read_ref
from onceward.ledger.ledger import Ledger
from onceward.store import PAGE_MAX

logger = logging.getLogger("onceward.hub")

IN_DOUBT, RESOLVED = "claim.in_doubt", "claim.resolved"
COMMITTED, NOT_COMMITTED, UNKNOWN = "committed", "not_committed", "unknown"

# Interval of the scan. Lapsed claims go in doubt every 60 seconds, so more scans would not find them sooner.
SCAN_SECONDS = 30.0
# How long the row of a resolved doubt is kept. It is not needed any more, but answers questions of an operator.
KEEP_DAYS = 30
# Rows written in one transaction.
_BATCH = 100

_INSERT = RawStatement("""
    INSERT INTO doubts (doubt_id, scope, key, version, body, created_at)
    VALUES (:doubt_id, :scope, :key, :version, :body, :created_at)
    ON CONFLICT DO NOTHING
""")
_RESOLVE = RawStatement("UPDATE doubts SET resolved_at = :now WHERE doubt_id = :doubt_id AND resolved_at IS NULL")
_OPEN = RawStatement("SELECT doubt_id, scope, key, version FROM doubts WHERE resolved_at IS NULL ORDER BY doubt_id")
_PURGE = RawStatement("DELETE FROM doubts WHERE resolved_at < :before")


@record(frozen=True, slots=True)
class Doubt:
    """A claim in doubt, as it is recorded."""

    doubt_id: str
    scope: str
    key: str
    version: int
    body: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        return ("doubts", self.doubt_id)

    def event(self, name: str, **more: str) -> NewEvent:
        namespace, _, scope = self.scope.partition(":")
        data: dict[str, Any] = {"namespace": namespace, "scope": scope, "key": shown_key(self.scope, self.key)}
        return NewEvent(name, None, "claim", self.doubt_id, compact({**data, "version": self.version, **more}))


def doubt_of(entry: Entry, log_keys: LogKeys = "short") -> Doubt:
    """Return the doubt of an entry. Its id depends only on the claim, so that every process finds the same one."""
    doubt_id = doubt_id_of(entry.scope, entry.key, entry.version)
    data: dict[str, Any] = {
        "doubt_id": doubt_id,
        "namespace": entry.scope.partition(":")[0],
        **doubt_fields(entry, log_keys),
    }
    body = compact({"type": IN_DOUBT, "timestamp": now_text(), "data": data})
    return Doubt(doubt_id, entry.scope, entry.key, entry.version, body)


def doubt_id_of(scope: str, key: str, version: int) -> str:
    """Return the id of a doubt, such as `dbt_3f…`: a hash of the claim."""
    return "dbt_" + hashlib.sha256(f"{scope}\0{key}\0{version}".encode()).hexdigest()[:32]


def record_doubts(tx: Transaction, doubts: Sequence[Doubt]) -> EventSteps[int]:
    """Insert doubts that are not recorded, yield their events, and return their number."""
    now = now_text()
    new = [doubt for doubt in doubts if _insert(tx, doubt, now)]
    if new:
        yield [doubt.event(IN_DOUBT) for doubt in new]
    return len(new)


def record_resolved(tx: Transaction, ended: Sequence[tuple[Doubt, str]]) -> EventSteps[int]:
    """Mark doubts as resolved, yield the events of those that were not, and return their number.

    A doubt that was resolved before it could be recorded gets both events.
    """
    now = now_text()
    events: list[NewEvent] = []
    for doubt, outcome in ended:
        if _insert(tx, doubt, now):
            events.append(doubt.event(IN_DOUBT))
        if _RESOLVE.count(tx, {"doubt_id": doubt.doubt_id, "now": now}):
            events.append(doubt.event(RESOLVED, outcome=outcome))
    if events:
        yield events
    return len(events)


def _insert(tx: Transaction, doubt: Doubt, now: str) -> bool:
    values = {"doubt_id": doubt.doubt_id, "scope": doubt.scope, "key": doubt.key, "version": doubt.version}
    return bool(_INSERT.count(tx, {**values, "body": doubt.body, "created_at": now}))


class DoubtRecord:
    """The record of the doubts of a hub, in its database.

    Args:
        database: The hub's database.
        log_keys: How the webhook shows keys that clients chose. Events always show them cut, because every reader of the
            hub gets them.
        on_recorded: Called, in any thread, after a doubt was recorded.
    """

    def __init__(self, database: Database, log_keys: LogKeys, on_recorded: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._log_keys = log_keys
        self.on_recorded = on_recorded

    def record_doubt(self, entry: Entry) -> None:
        """Record a claim that this process has put in doubt: the `on_doubt` of the hub's ledger."""
        try:
            self._append([doubt_of(entry, self._log_keys)])
        except OncewardError as error:
            log_event(
                logger.warning,
                "doubt_not_recorded",
                doubt_id=doubt_id_of(entry.scope, entry.key, entry.version),
                reason=str(error),
                hint="the next scan records it",
            )

    async def record_resolution(self, scope: str, key: str, version: int, outcome: str) -> None:
        """Record that a doubt was resolved. If that fails, the next scan does it. The scope begins with the namespace."""
        doubt = Doubt(doubt_id_of(scope, key, version), scope, key, version)
        try:
            await self._database.writer.append(lambda tx: record_resolved(tx, [(doubt, outcome)]), doubt.order)
        except OncewardError as error:
            hint = "the next scan records it"
            log_event(logger.warning, "doubt_not_recorded", doubt_id=doubt.doubt_id, reason=str(error), hint=hint)

    def scan(self, ledger: Ledger, progress: Callable[[int], None] = lambda _: None) -> int:
        """Compare the doubts of a ledger with the record, and return the number of changes. It blocks.

        Args:
            ledger: The ledger of the hub.
            progress: Called between two transactions; it may raise to stop the scan.

        Returns:
            The number of doubts that were recorded or marked as resolved.

        Raises:
            StoreUnavailable: If the ledger or the database did not respond.
        """
        # The rows come first: a claim that goes in doubt afterwards is new, and not mistaken for a resolved one.
        known = {row[0]: row for row in self._database.rows(_OPEN, {})}
        found = {doubt_id_of(one.scope, one.key, one.version): one for one in _in_doubt(ledger)}
        changes = 0
        new = [entry for doubt_id, entry in sorted(found.items()) if doubt_id not in known]
        for start in range(0, len(new), _BATCH):
            changes += self._append([doubt_of(entry, self._log_keys) for entry in new[start : start + _BATCH]])
            progress(changes)
        gone = [row for doubt_id, row in known.items() if doubt_id not in found]
        for start in range(0, len(gone), _BATCH):
            ended = [one for row in gone[start : start + _BATCH] if (one := _find_end(ledger, *row)) is not None]
            if ended:
                changes += self._database.writer.append_blocking(_resolving(ended), ended[0][0].order)
            progress(changes)
        return changes

    def _append(self, doubts: Sequence[Doubt]) -> int:
        count = self._database.writer.append_blocking(lambda tx: record_doubts(tx, doubts), doubts[0].order)
        if count:
            self.on_recorded()
        return count


def _in_doubt(ledger: Ledger) -> Iterator[Entry]:
    after = ""
    while True:
        page = ledger.blocking.scan(status=Status.IN_DOUBT, after=after, limit=PAGE_MAX)
        yield from page.entries
        after = page.next
        if not after:
            return


def _resolving(ended: Sequence[tuple[Doubt, str]]) -> Callable[[Transaction], EventSteps[int]]:
    return lambda tx: record_resolved(tx, ended)


def _find_end(ledger: Ledger, doubt_id: str, scope: str, key: str, version: int) -> tuple[Doubt, str] | None:
    """Return a recorded doubt that has ended, and how; None if it has not, as those of other namespaces."""
    entry = wait(read_ref(ledger, Ref(scope, key)))
    outcome = UNKNOWN
    if entry is not None and entry.version == version:
        if entry.status is Status.IN_DOUBT:
            return None
        outcome = {Status.COMPLETED: COMMITTED, Status.FAILED: NOT_COMMITTED}.get(entry.status, UNKNOWN)
    return Doubt(doubt_id, scope, key, version), outcome


def purge_doubts(database: Database) -> int:
    """Delete the rows of doubts that were resolved long ago, and return their number."""
    before = time_text(datetime.now(UTC) - timedelta(days=KEEP_DAYS))
    with database.write() as tx:
        return _PURGE.count(tx, {"before": before})
