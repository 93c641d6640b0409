"""Bound claims: the ledger's SQL statements inside a caller's own transaction.

The caller passes its connection; `caller_connection` has the kinds. The steps are generators that yield statements and
receive rows, so that sync and async callers share the same code.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from onceward.core.claim import EVER, Entry
from onceward.core.key import short_key
from onceward.core.outcome import Outcome
from onceward.core.timestamp import to_text
from onceward.errors import ClaimLost, InvalidOption, OncewardError, StoreUnavailable, TransactionConflict
from onceward.store import Clock
from onceward.store.caller_connection import POSTGRES, SQLITE, CallerConnection, Rows, driver_in_transaction

Steps: TypeAlias = Generator[tuple[str, Mapping[str, object]], Rows, object]

# An update that changes nothing takes the write lock of the file.
_LOCK_SQLITE = (
    "UPDATE platform_idempotency_keys SET write_id = write_id"
    " WHERE scope = :scope AND key = :key AND version = :version AND status IN ('in_progress', 'in_doubt') RETURNING 1"
)
_LOCK_POSTGRES = (
    "SELECT CAST(pg_current_xact_id() AS text) FROM platform_idempotency_keys"
    " WHERE scope = :scope AND key = :key AND version = :version AND status IN ('in_progress', 'in_doubt')"
    " FOR NO KEY UPDATE"
)
_SETTLE_SQLITE = (
    "UPDATE platform_idempotency_keys SET status = 'completed', write_id = :write_id, completed_at = :now,"
    " expires_at = :expires_at, refuse_until = :refuse_until, note = '', response_status = :code, response_headers = :headers,"
    " response_body = :body, response_chunks = :chunks"
    " WHERE scope = :scope AND key = :key AND version = :version AND status IN ('in_progress', 'in_doubt') RETURNING 1"
)
# A pinned clock passes its own time. Otherwise the server's clock is used; it is read once, for all three times.
_SETTLE_POSTGRES = (
    "WITH clock AS MATERIALIZED (SELECT coalesce("
    "timestamptz 'epoch' + CAST(:now AS bigint) * interval '1 microsecond', clock_timestamp()) AS now)"
    " UPDATE platform_idempotency_keys SET status = 'completed', write_id = CAST(:write_id AS text),"
    " completed_at = clock.now,"
    " expires_at = clock.now + CAST(:expires AS bigint) * interval '1 microsecond',"
    " refuse_until = clock.now + CAST(:refuse AS bigint) * interval '1 microsecond',"
    " note = '', response_status = CAST(:code AS integer), response_headers = CAST(:headers AS text),"
    " response_body = CAST(:body AS bytea), response_chunks = CAST(:chunks AS integer)"
    " FROM clock"
    " WHERE scope = CAST(:scope AS text) AND key = CAST(:key AS text) AND version = CAST(:version AS bigint)"
    " AND status IN ('in_progress', 'in_doubt') RETURNING CAST(pg_current_xact_id() AS text)"
)
_CHUNK = (
    "INSERT INTO platform_idempotency_chunks (scope, key, seq, data) VALUES (:scope, :key, :seq, :data) RETURNING 1"
)
_ISOLATION = "SELECT current_setting('transaction_isolation')"
ENDED = "the transaction that the claim was bound to has ended; settle before the commit, so that both commit together"


@dataclass(frozen=True, slots=True)
class BoundConnection:
    """The statements of one claim in one transaction of the caller."""

    connection: CallerConnection
    dialect: str
    clock: Clock | None
    file: Path | None = None
    require_schema: tuple[str, ...] = ()  # the statements before a settle that `needs_new_schema`

    def lock(self, entry: Entry) -> Steps:
        """Lock the entry for the rest of the transaction, or raise `ClaimLost`.

        Returns what identifies the transaction: its number on PostgreSQL, and a constant on SQLite, which has none.
        """
        if self.file is not None:
            rows = yield "PRAGMA database_list", {}
            _check_file(rows, self.file)
            if not self.connection.in_transaction():
                yield "BEGIN IMMEDIATE", {}
        rows = yield _LOCK_SQLITE if self.dialect == SQLITE else _LOCK_POSTGRES, _claim_values(entry)
        if rows:
            if not driver_in_transaction(self.connection.driver()):
                raise InvalidOption(
                    "bind() needs an open transaction, but this connection commits each statement (autocommit);"
                    " begin a transaction first, or turn autocommit off"
                )
            return rows[0][0]
        if self.dialect == POSTGRES:
            isolation = yield _ISOLATION, {}
            if isolation[0][0] != "read committed":
                raise TransactionConflict(
                    f"the {isolation[0][0]} transaction began before the claim and cannot see it;"
                    " begin the transaction inside the effect, and repeat it if it conflicts"
                )
        raise ClaimLost(
            f"the claim on {short_key(entry.key)!r} was taken over, or this connection is to another database"
        )

    def settle(
        self,
        entry: Entry,
        outcome: Outcome,
        chunks: Sequence[bytes],
        write_id: str,
        retain: int,
        locked_in: object,
        refuse: int = 0,
    ) -> Steps:
        """Write the outcome in the caller's transaction, whose commit publishes it. `locked_in` comes from `lock`."""
        for seq, data in enumerate(chunks, 1):
            yield _CHUNK, {"scope": entry.scope, "key": entry.key, "seq": seq, "data": data}
        values: dict[str, object] = {
            **_claim_values(entry), "write_id": write_id, "code": outcome.code, "headers": outcome.headers,
            "body": outcome.body, "chunks": outcome.chunks,
        }  # fmt: skip
        expires = None if refuse == EVER else retain
        until = None if refuse == 0 else retain if refuse == EVER else retain + refuse
        for statement in self.require_schema if refuse else ():
            yield statement, {}
        if self.dialect == SQLITE:
            now = self.clock() if self.clock else 0
            times = (None if span is None else to_text(now + span) for span in (0, expires, until))
            rows = yield _SETTLE_SQLITE, values | dict(zip(("now", "expires_at", "refuse_until"), times, strict=True))
        else:
            now_or_none = self.clock() if self.clock else None
            rows = yield _SETTLE_POSTGRES, values | {"now": now_or_none, "expires": expires, "refuse": until}
        if not rows:
            raise ClaimLost(f"the claim on {short_key(entry.key)!r} was taken over; roll this transaction back")
        if rows[0][0] != locked_in:
            raise TransactionConflict(f"{ENDED}; this is another transaction: roll it back")
        return None

    def run(self, steps: Steps) -> None:
        try:
            sql, values = next(steps)
            while True:
                try:
                    rows = self.connection.execute(sql, values)
                except Exception as error:
                    raise _translate_error(error) from error
                sql, values = steps.send(rows)
        except StopIteration:
            return

    async def arun(self, steps: Steps) -> None:
        try:
            sql, values = next(steps)
            while True:
                try:
                    rows = await self.connection.execute(sql, values)
                except Exception as error:
                    raise _translate_error(error) from error
                sql, values = steps.send(rows)
        except StopIteration:
            return


def _claim_values(entry: Entry) -> dict[str, object]:
    return {"scope": entry.scope, "key": entry.key, "version": entry.version}


def _check_file(rows: Rows, file: Path) -> None:
    for _, name, path in rows:
        if name == "main" and path and Path(path).exists() and file.samefile(path):
            return
    raise InvalidOption(f"bind() needs a connection to the ledger's own file, {file}")


def _translate_error(error: Exception) -> Exception:
    """Translate a driver's error: a conflict that a new transaction solves, a wrong database, or a failing store."""
    if isinstance(error, OncewardError):
        return error
    name = type(error).__name__
    if name == "TransactionManagementError":  # Django's: a statement failed in the atomic block
        return TransactionConflict(f"the transaction can only be rolled back ({error}); roll it back and repeat it")
    if name == "SynchronousOnlyOperation":  # Django's
        return InvalidOption("bind() on Django's connection must run in a function that sync_to_async runs")
    # SQLAlchemy and Django raise errors of their own for the driver's.
    is_django = type(error).__module__.startswith("django.")
    cause = getattr(error, "orig", None) or (error.__cause__ if is_django else None) or error
    state = getattr(cause, "sqlstate", None) or ""
    if state in {"40001", "40P01"} or "database is locked" in str(cause):
        return TransactionConflict(f"the transaction conflicts with another one ({cause}); roll it back and repeat it")
    if state == "42P01":  # no such table
        return InvalidOption(f"bind() needs a connection to the ledger's own database: {cause}")
    return StoreUnavailable(f"the bound transaction failed: {cause}")
