"""Stored bytes of each principal: a counter row that changes with every attachment, and the quota that limits it.

The uploader pays
=================

An attachment counts with the size of its bytes for the principal that uploaded it, also if the same content is stored
already. So a principal's usage depends only on its own attachments: the upload or deletion of another principal never
changes it, and never shows that somebody else has the same file.

The counter changes in the transaction that inserts or deletes the attachment. Its row is locked until the commit, so of
two uploads at once the second one sees the first. Nothing is added up on the way; fsck and doctor do that, and compare.

Attachments without a principal were uploaded by an earlier version. They count for nobody.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import text

from onceward.core.record import record
from onceward.errors import TooLarge
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.page import LIMIT_MAX, RowPage, page_of
from onceward.hub.db.raw_sql import RawStatement


class OverQuota(TooLarge):
    """The upload would exceed the quota of its principal. Nothing was stored."""


@record(frozen=True, slots=True)
class Quota:
    """The principal that an upload counts for, and the bytes it may store; 0 means no limit."""

    principal: str
    bytes_max: int = 0

    def check(self, used_bytes: int, new_bytes: int) -> None:
        """Raise `OverQuota` if these bytes do not fit beside those that are used."""
        if self.bytes_max and used_bytes + new_bytes > self.bytes_max:
            raise OverQuota(
                f"{new_bytes} bytes do not fit into the quota of {self.principal[:64]!r}: {used_bytes} of"
                f" {self.bytes_max} bytes are used; delete attachments, or ask the operator of the hub to raise"
                " attachments.max_bytes_per_principal"
            )


@dataclass(frozen=True, slots=True)
class PrincipalUsage:
    """The attachments of a principal that have bytes, and the sum of their sizes."""

    principal: str
    stored_bytes: int
    attachment_count: int

    def json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WrongCounter:
    """A counter that differs from the attachments. `corrected` says whether it was set right."""

    principal: str
    counted_bytes: int
    stored_bytes: int
    counted_attachments: int
    attachment_count: int
    corrected: bool = False

    def json(self) -> dict[str, object]:
        return asdict(self)


_TAKE = RawStatement("""
    INSERT INTO stored_bytes (principal, stored_bytes, attachment_count) VALUES (:principal, :size_bytes, 1)
    ON CONFLICT (principal) DO UPDATE SET
        stored_bytes = stored_bytes.stored_bytes + excluded.stored_bytes,
        attachment_count = stored_bytes.attachment_count + 1
    WHERE :bytes_max = 0 OR stored_bytes.stored_bytes + excluded.stored_bytes <= :bytes_max
""")
_GIVE_BACK = RawStatement("""
    UPDATE stored_bytes SET stored_bytes = stored_bytes - :size_bytes, attachment_count = attachment_count - :count
    WHERE principal = :principal
""")
_USED = RawStatement("SELECT stored_bytes FROM stored_bytes WHERE principal = :principal")
_COLUMNS = "SELECT principal, stored_bytes, attachment_count FROM stored_bytes"
_PAGE = RawStatement(f"{_COLUMNS} WHERE principal > :after ORDER BY principal LIMIT :limit")
_LARGEST = RawStatement(f"{_COLUMNS} ORDER BY stored_bytes DESC, principal LIMIT :limit")
# One statement, so that it sees counters and attachments at the same time.
_COMPARE = """
    SELECT principal, sum(counted_bytes), sum(stored_bytes), sum(counted_attachments), sum(attachment_count)
    FROM (
        SELECT principal, stored_bytes AS counted_bytes, 0 AS stored_bytes,
            attachment_count AS counted_attachments, 0 AS attachment_count
        FROM stored_bytes
        UNION ALL
        SELECT attachments.principal, 0, sum(blobs.size_bytes), 0, count(*)
        FROM attachments JOIN blobs ON blobs.id = attachments.blob_id
        WHERE attachments.principal IS NOT NULL
        GROUP BY attachments.principal
    ) AS both_sides
    GROUP BY principal
    HAVING sum(counted_bytes) <> sum(stored_bytes) OR sum(counted_attachments) <> sum(attachment_count)
    ORDER BY principal
"""
_WRONG = text(_COMPARE)
_CORRECT = text("""
    INSERT INTO stored_bytes (principal, stored_bytes, attachment_count)
    VALUES (:principal, :stored_bytes, :attachment_count)
    ON CONFLICT (principal) DO UPDATE SET
        stored_bytes = excluded.stored_bytes, attachment_count = excluded.attachment_count
""")
# Wait for every transaction that has changed a counter, and let the others wait. SQLite has one writer anyway.
_LOCK = text("LOCK TABLE stored_bytes IN SHARE ROW EXCLUSIVE MODE")


def require_room(database: Database, quota: Quota, new_bytes: int) -> None:
    """Raise `OverQuota` if these bytes do not fit now. Only `take` decides."""
    found = database.rows(_USED, {"principal": quota.principal})
    quota.check(int(found[0][0]) if found else 0, new_bytes)


def take(tx: Transaction, quota: Quota, size_bytes: int) -> None:
    """Count the bytes of a new attachment, or raise `OverQuota`. Call it in the transaction that inserts the row."""
    quota.check(0, size_bytes)
    values = {"principal": quota.principal, "size_bytes": size_bytes, "bytes_max": quota.bytes_max}
    if _TAKE.count(tx, values) == 0:
        quota.check(used_bytes(tx, quota.principal), size_bytes)


def give_back(tx: Transaction, deleted: Iterable[tuple[str | None, int | None]]) -> None:
    """Give back the bytes of deleted attachments: pairs of principal and size. Links have no size."""
    sums: dict[str, tuple[int, int]] = {}
    for principal, size_bytes in deleted:
        if principal is not None and size_bytes is not None:
            total, count = sums.get(principal, (0, 0))
            sums[principal] = total + size_bytes, count + 1
    # In one order, so that two transactions do not wait for each other.
    for principal in sorted(sums):
        total, count = sums[principal]
        _GIVE_BACK.count(tx, {"principal": principal, "size_bytes": total, "count": count})


def used_bytes(tx: Transaction, principal: str) -> int:
    """Return the counted bytes of a principal."""
    found = _USED.rows(tx, {"principal": principal})
    return int(found[0][0]) if found else 0


def usage_page(tx: Transaction, limit: int, after: str = "") -> RowPage[PrincipalUsage]:
    """Return a page of the counters, by principal."""
    limit = min(limit, LIMIT_MAX)
    rows = [PrincipalUsage(*row) for row in _PAGE.rows(tx, {"after": after, "limit": limit + 1})]
    return page_of(rows, limit, lambda row: row.principal)


def largest_usage(database: Database, limit: int) -> list[PrincipalUsage]:
    """Return the principals with the most bytes."""
    return [PrincipalUsage(*row) for row in database.rows(_LARGEST, {"limit": limit})]


def wrong_counters(tx: Transaction) -> list[WrongCounter]:
    """Compare every counter with its attachments, and return those that differ. It reads all attachments."""
    return [WrongCounter(row[0], int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in tx.execute(_WRONG)]


def check_counters(database: Database, *, correct: bool) -> Sequence[WrongCounter]:
    """Return the wrong counters, and set them to the sums of their attachments if `correct` says so."""
    with database.read() as tx:
        found = wrong_counters(tx)
    return _correct(database) if found and correct else found


def _correct(database: Database) -> Sequence[WrongCounter]:
    with database.write() as tx:
        if not database.is_sqlite:
            tx.execute(_LOCK)
        found = wrong_counters(tx)
        for one in found:
            values = {"principal": one.principal, "stored_bytes": one.stored_bytes}
            tx.execute(_CORRECT, {**values, "attachment_count": one.attachment_count})
    return [dataclasses.replace(one, corrected=True) for one in found]
