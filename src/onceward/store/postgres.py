"""The PostgreSQL store: one connection, one round trip for each batch.

The rules of the claim machine are decided inside the database, by `postgres_commit.sql`, because only there can rows be
judged and locked without a second trip. The contract suite holds them equal to `core.claim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceward.core.claim import Answer, Entry, Ref, Status, Write
from onceward.errors import StoreUnavailable
from onceward.store import BatchFailed, Clock, Page, Reading
from onceward.store.bind import POSTGRES, Binding, session_for
from onceward.store.flight import Flight
from onceward.store.held import Held
from onceward.store.memory import cursor
from onceward.store.postgres_rows import answered, finishes, pieces, read_record, to_answers, to_entry, write_record
from onceward.store.postgres_wire import Row, Wire

_COMMIT = "SELECT * FROM onceward_commit_v4(%s::bigint, %s::onceward_write_v4[], %s::onceward_write_v4[], %b)"
_SCAN = "SELECT * FROM onceward_scan_v2(%s, %s, %s, %s, %s::integer)"
_PURGE = "SELECT onceward_purge_v1(%s::bigint, %s::integer)"
_LAPSED = "SELECT * FROM onceward_lapsed_v1(%s::bigint, %s::integer)"
_CHUNKS = """
SELECT c.data FROM platform_idempotency_keys AS e JOIN platform_idempotency_chunks AS c USING (scope, key)
WHERE e.scope = %s AND e.key = %s AND e.version = %s::bigint AND c.seq > %s::integer ORDER BY c.seq LIMIT %s::integer
"""


class PostgresStore:
    """A ledger in a PostgreSQL database (14 or later), in the first schema of its search path.

    Between here and the server a pooler must keep sessions (not transactions) together: a session has its settings.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock
        self._held = Held()
        self.wire = Wire(url, self._held.clear)

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        packed = self.pack()
        packed.add(writes)
        return self.decided(packed, self.wire.ask(_COMMIT, packed.arguments()))

    def pack(self) -> Packed:
        return Packed(self, self._held)

    def decided(self, packed: Packed, rows: list[Row]) -> list[Answer]:
        """A begin may find an expired entry that is purged before it can be locked; then the key is free: ask again."""
        writes = packed.writes
        answers = self._told(packed, rows)
        while gone := [n for n, answer in enumerate(answers) if answer is None]:
            try:
                again = self.commit([writes[n] for n in gone])
            except BatchFailed as error:
                raise StoreUnavailable(f"only a part of the batch was decided: {error}") from error
            for n, answer in zip(gone, again, strict=True):
                answers[n] = answer
        return cast("list[Answer]", answers)

    def arguments(self, known: list[str], other: list[str], data: bytes) -> tuple[object, ...]:
        """Of `_COMMIT`."""
        return self._now(), _array(known), _array(other), data

    def _told(self, packed: Packed, rows: list[Row]) -> list[Answer | None]:
        answers = to_answers(packed.writes, packed.known, rows)
        self._held.note([(write.scope, write.key) for write in packed.writes], answers)
        return answers

    def read(self, refs: Sequence[Ref]) -> Reading:
        # Of no key, if need be, because an answer tells the time even to one who asks for nothing else.
        wanted = list(refs) or [Ref("", "")]
        arguments = self.arguments([], [read_record(n, ref) for n, ref in enumerate(wanted)], b"")
        rows = self.wire.ask(_COMMIT, arguments)
        found = {row[0]: to_entry(*wanted[row[0]], row[5:]) for row in rows if row[5] is not None}
        return Reading(rows[0][4], tuple(found.get(n) for n in range(len(refs))))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        last_scope, _, last_key = after.partition("\x00")
        arguments = (scope, None if status is None else status.value, last_scope, last_key, limit + 1)
        rows = self.wire.ask(_SCAN, arguments)
        page = tuple(to_entry(row[0], row[1], row[2:]) for row in rows[:limit])
        return Page(page, cursor(page[-1].ref) if len(rows) > limit else "")

    def purge(self, limit: int) -> int:
        ((purged,),) = self.wire.ask(_PURGE, (self._now(), limit))
        return cast("int", purged)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        return [to_entry(row[0], row[1], row[2:]) for row in self.wire.ask(_LAPSED, (self._now(), limit))]

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        arguments = (ref.scope, ref.key, version, after, limit)
        return [row[0] for row in self.wire.ask(_CHUNKS, arguments)]

    def bind(self, connection: object) -> Binding:
        """A caller's transaction on this database; it locks the claim's row alone, and nobody waits for it."""
        return Binding(session_for(connection, POSTGRES), POSTGRES, self._clock)

    def abandon(self) -> None:
        self.wire.abandon()

    def close(self) -> None:
        self.wire.close()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()


def _array(records: list[str]) -> str | None:
    return f"{{{','.join(records)}}}" if records else None


class Packed:
    """Writes as the function reads them, and the entries that were known of when they were packed."""

    __slots__ = ("_data", "_held", "_known", "_other", "_size", "_store", "known", "writes")

    def __init__(self, store: PostgresStore, held: Held) -> None:
        self._store = store
        self._held = held
        self._known: list[str] = []
        self._other: list[str] = []
        self._data: list[bytes] = []
        self._size = 0
        self.writes: list[Write] = []
        self.known: list[Entry | None] = []

    def add(self, writes: Sequence[Write]) -> None:
        for n, write in enumerate(writes, len(self.writes)):
            known = self._held.known(write)
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

    def depart(self) -> Flight | None:
        return None if self._store.wire.connection is None else _Flight(self._store, self)


class _Flight:
    """A batch that the server works on; see `store/flight.py`."""

    __slots__ = ("_asked", "_packed", "_rows", "_store", "_went_wrong", "grounded")

    def __init__(self, store: PostgresStore, packed: Packed) -> None:
        self._store = store
        self._packed = packed
        self._asked = store.wire.depart(_COMMIT, packed.arguments())
        self._rows: list[Row] | None = None
        self._went_wrong: Exception | None = None
        self.grounded = self._asked.stuck

    @property
    def received(self) -> bool:
        return self._rows is not None and not self.grounded

    def fileno(self) -> int:
        return self._asked.fileno()

    def poll(self) -> bool:
        try:
            if self._store.wire.poll(self._asked):
                self._rows = self._store.wire.rows(self._asked)
                self.grounded = answered(self._rows) < len(self._packed.writes)
                return True
        except Exception as error:  # noqa: BLE001  # raised by `finish`
            self._went_wrong = error
            return True
        self.grounded = self._asked.stuck
        return self.grounded

    def finish(self) -> list[Answer]:
        if self._went_wrong is not None:
            raise self._went_wrong
        rows = self._store.wire.rows(self._asked) if self._rows is None else self._rows
        return self._store.decided(self._packed, rows)

    def give_up(self) -> None:
        self._store.wire.drop()
