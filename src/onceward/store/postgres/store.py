"""The PostgreSQL store: one connection, one round trip for each batch.

`commit.sql` applies the rules of the claim state machine inside the database, because only the database can check and
lock rows in one round trip. The contract tests compare it with `core.claim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceward.core.claim import Entry, Ref, Status, Write, WriteResult
from onceward.errors import StoreUnavailable
from onceward.store import BatchFailed, Clock, Page, Reading, needs_new_schema
from onceward.store.bind import BoundConnection
from onceward.store.caller_connection import POSTGRES, caller_connection
from onceward.store.claim_cache import ClaimCache
from onceward.store.dispatch.inflight import SentBatch
from onceward.store.memory import cursor
from onceward.store.postgres.connection import PostgresConnection
from onceward.store.postgres.driver import ResultRow
from onceward.store.postgres.records import (
    count_results,
    finishes,
    pieces,
    read_record,
    to_entry,
    to_results,
    write_record,
)

_COMMIT = "SELECT * FROM onceward_commit_v7(%s::bigint, %s::onceward_write_v7[], %s::onceward_write_v7[], %b)"
_REQUIRE_SCHEMA = "SELECT 1 FROM onceward_require_schema_2_v1()"
_SCAN = "SELECT * FROM onceward_scan_v3(%s, %s, %s, %s, %s::integer)"
_PURGE = "SELECT onceward_purge_v3(%s::bigint, %s::integer)"
_LAPSED = "SELECT * FROM onceward_lapsed_v2(%s::bigint, %s::integer)"
_CHUNKS = """
SELECT c.data FROM platform_idempotency_keys AS e JOIN platform_idempotency_chunks AS c USING (scope, key)
WHERE e.scope = %s AND e.key = %s AND e.version = %s::bigint AND c.seq > %s::integer ORDER BY c.seq LIMIT %s::integer
"""


class PostgresStore:
    """A ledger in a PostgreSQL database (14 or later), in the first schema of its search path.

    A connection pooler in front of it may use transaction pooling (`pooler.py`).
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock
        self._cache = ClaimCache()
        self._schema_is_required = False
        self.connection = PostgresConnection(url, self._cache.clear)

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        encoded = self.encode_batch()
        encoded.add(writes)
        if self.must_require_schema(writes):
            self.connection.query(_REQUIRE_SCHEMA, (), repeats=True)
            self._schema_is_required = True
        return self.results_of(encoded, self.connection.query(_COMMIT, encoded.arguments(), prepare=True))

    def must_require_schema(self, writes: Sequence[Write]) -> bool:
        """Return whether processes of schema 1 must be kept out before these writes."""
        return not self._schema_is_required and any(map(needs_new_schema, writes))

    def encode_batch(self) -> PostgresBatch:
        return PostgresBatch(self, self._cache)

    def results_of(self, encoded: PostgresBatch, rows: list[ResultRow]) -> list[WriteResult]:
        """Return the results of a batch.

        A begin may find an expired entry that is purged before it can be locked. It has no result then; the key is
        free, and the write is sent again.
        """
        writes = encoded.writes
        results = self._decided_results(encoded, rows)
        while undecided := [n for n, result in enumerate(results) if result is None]:
            try:
                again = self.commit([writes[n] for n in undecided])
            except BatchFailed as error:
                raise StoreUnavailable(
                    f"PostgreSQL returned the results of only a part of the batch: {error}"
                ) from error
            for n, result in zip(undecided, again, strict=True):
                results[n] = result
        return cast("list[WriteResult]", results)

    def arguments(self, known: list[str], other: list[str], data: bytes) -> tuple[object, ...]:
        """Return the arguments of `_COMMIT`."""
        return self._now(), _array(known), _array(other), data

    def _decided_results(self, encoded: PostgresBatch, rows: list[ResultRow]) -> list[WriteResult | None]:
        results = to_results(encoded.writes, encoded.known, rows)
        self._cache.update([(write.scope, write.key) for write in encoded.writes], results)
        return results

    def read(self, refs: Sequence[Ref]) -> Reading:
        # With no refs, read an empty one, because the result must contain the time.
        wanted = list(refs) or [Ref("", "")]
        arguments = self.arguments([], [read_record(n, ref) for n, ref in enumerate(wanted)], b"")
        rows = self.connection.query(_COMMIT, arguments, repeats=True, prepare=True)
        found = {row[0]: to_entry(*wanted[row[0]], row[5:]) for row in rows if row[5] is not None}
        return Reading(rows[0][4], tuple(found.get(n) for n in range(len(refs))))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        last_scope, _, last_key = after.partition("\x00")
        arguments = (scope, None if status is None else status.value, last_scope, last_key, limit + 1)
        rows = self.connection.query(_SCAN, arguments, repeats=True)
        page = tuple(to_entry(row[0], row[1], row[2:]) for row in rows[:limit])
        return Page(page, cursor(page[-1].ref) if len(rows) > limit else "")

    def purge(self, limit: int) -> int:
        ((purged,),) = self.connection.query(_PURGE, (self._now(), limit), repeats=True)
        return cast("int", purged)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        return [to_entry(row[0], row[1], row[2:]) for row in self.connection.query(_LAPSED, (self._now(), limit))]

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        arguments = (ref.scope, ref.key, version, after, limit)
        return [row[0] for row in self.connection.query(_CHUNKS, arguments, repeats=True)]

    def check(self) -> None:
        """Check the privileges of the role (see `store/check.py`)."""
        self.connection.check()

    def bind(self, connection: object) -> BoundConnection:
        """Bind to a caller's transaction on this database. It locks only the row of the claim, and delays no batch."""
        return BoundConnection(
            caller_connection(connection, POSTGRES), POSTGRES, self._clock, require_schema=(_REQUIRE_SCHEMA,)
        )

    def abandon(self) -> None:
        self.connection.abandon()

    def close(self) -> None:
        self.connection.close()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()


def _array(records: list[str]) -> str | None:
    return f"{{{','.join(records)}}}" if records else None


class PostgresBatch:
    """Encoded writes, and the entries that were cached when they were encoded."""

    __slots__ = ("_cache", "_data", "_known", "_other", "_size", "_store", "known", "writes")

    def __init__(self, store: PostgresStore, cache: ClaimCache) -> None:
        self._store = store
        self._cache = cache
        self._known: list[str] = []
        self._other: list[str] = []
        self._data: list[bytes] = []
        self._size = 0
        self.writes: list[Write] = []
        self.known: list[Entry | None] = []

    def add(self, writes: Sequence[Write]) -> None:
        for n, write in enumerate(writes, len(self.writes)):
            known = self._cache.known(write)
            self.known.append(known)
            if known is None or not finishes(write):
                self._other.append(write_record(n, write, self._size, ""))
            else:
                self._known.append(write_record(n, write, self._size, known.write_id))
            for piece in pieces(write):
                self._data.append(piece)
                self._size += len(piece)
        self.writes += writes

    def arguments(self) -> tuple[object, ...]:
        return self._store.arguments(self._known, self._other, b"".join(self._data))

    def send(self) -> SentBatch | None:
        if self._store.connection.driver is None or self._store.must_require_schema(self.writes):
            return None
        return _PostgresSentBatch(self._store, self)


class _PostgresSentBatch:
    """A batch that was sent to the server; see `store/dispatch/inflight.py`."""

    __slots__ = ("_encoded", "_failure", "_rows", "_running", "_store", "must_block")

    def __init__(self, store: PostgresStore, encoded: PostgresBatch) -> None:
        self._store = store
        self._encoded = encoded
        self._running = store.connection.send_nowait(_COMMIT, encoded.arguments())
        self._rows: list[ResultRow] | None = None
        self._failure: Exception | None = None
        self.must_block = self._running.must_block

    @property
    def received(self) -> bool:
        return self._rows is not None and not self.must_block

    def fileno(self) -> int:
        return self._running.fileno()

    def poll(self) -> bool:
        try:
            if self._store.connection.poll(self._running):
                self._rows = self._store.connection.rows(self._running)
                self.must_block = count_results(self._rows) < len(self._encoded.writes)
                return True
        except Exception as error:  # noqa: BLE001  # raised by `finish`
            self._failure = error
            return True
        self.must_block = self._running.must_block
        return self.must_block

    def finish(self) -> list[WriteResult]:
        if self._failure is not None:
            raise self._failure
        rows = self._store.connection.rows(self._running) if self._rows is None else self._rows
        return self._store.results_of(self._encoded, rows)

    def give_up(self) -> None:
        self._store.connection.drop()
