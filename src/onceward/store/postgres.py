"""The PostgreSQL store: one connection, one round trip for each batch.

The rules of the claim machine are decided inside the database, by `postgres_commit.sql`, because only there can rows be
judged and locked without a second trip. The contract suite holds them equal to `core.claim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceward.core.claim import Answer, Begin, Ref, Status, Write
from onceward.errors import StoreUnavailable
from onceward.store import BatchFailed, Clock, Page, Reading
from onceward.store.bind import POSTGRES, Binding, session_for
from onceward.store.flight import Flight
from onceward.store.held import Held
from onceward.store.memory import cursor
from onceward.store.postgres_rows import pieces, read_record, to_answer, to_entry, write_record
from onceward.store.postgres_wire import Row, Wire

_COMMIT = "SELECT * FROM onceward_commit_v2(%s::bigint, %s::onceward_write_v2[], %b)"
_SCAN = "SELECT * FROM onceward_scan_v1(%s, %s, %s, %s, %s::integer)"
_PURGE = "SELECT onceward_purge_v1(%s::bigint, %s::integer)"
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
        return self.decided(writes, self._commit(writes))

    def start(self, writes: Sequence[Write]) -> Flight | None:
        if self.wire.connection is None:
            return None
        return _Flight(self, writes)

    def decided(self, writes: Sequence[Write], answers: list[Answer]) -> list[Answer]:
        """A begin may find an expired entry that is purged before it can be locked; then the key is free: ask again."""
        while gone := undecided(writes, answers):
            try:
                again = self._commit([writes[n] for n in gone])
            except BatchFailed as error:
                raise StoreUnavailable(f"only a part of the batch was decided: {error}") from error
            for n, answer in zip(gone, again, strict=True):
                answers[n] = answer
        return answers

    def _commit(self, writes: Sequence[Write]) -> list[Answer]:
        refs, arguments = self.parcel(writes)
        return self.told(writes, refs, self.wire.ask(_COMMIT, arguments))

    def parcel(self, writes: Sequence[Write]) -> tuple[list[tuple[str, str]], tuple[object, ...]]:
        """The writes as arguments of `_COMMIT`."""
        records: list[str] = []
        data: list[bytes] = []
        size = 0
        for n, write in enumerate(writes):
            records.append(write_record(n, write, size, self._held.write_id(write)))
            for piece in pieces(write):
                data.append(piece)
                size += len(piece)
        return [(write.scope, write.key) for write in writes], self._arguments(records, b"".join(data))

    def _arguments(self, records: list[str], data: bytes) -> tuple[object, ...]:
        return self._now(), f"{{{','.join(records)}}}", data

    def told(self, writes: Sequence[Write], refs: list[tuple[str, str]], rows: list[Row]) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(writes)
        for row in rows:
            n = row[0]
            answers[n] = to_answer(row, writes[n], self._held.get(refs[n]))
        told = [answer for answer in answers if answer is not None]
        self._held.note(refs, told)
        return told

    def read(self, refs: Sequence[Ref]) -> Reading:
        # Of no key, if need be, because an answer tells the time even to one who asks for nothing else.
        wanted = list(refs) or [Ref("", "")]
        arguments = self._arguments([read_record(n, ref) for n, ref in enumerate(wanted)], b"")
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


def undecided(writes: Sequence[Write], answers: Sequence[Answer]) -> list[int]:
    return [n for n, write in enumerate(writes) if answers[n].entry is None and isinstance(write, Begin)]


def _leaves_open(row: Row, write: Write) -> bool:
    """As `undecided`, before the answer is worked out."""
    _, applied, _, _, _, fingerprint = row[:6]
    return fingerprint is None and not applied and isinstance(write, Begin)


class _Flight:
    """A batch that the server works on; see `store/flight.py`."""

    __slots__ = ("_asked", "_refs", "_rows", "_store", "_went_wrong", "_writes", "grounded")

    def __init__(self, store: PostgresStore, writes: Sequence[Write]) -> None:
        self._store = store
        self._writes = writes
        self._refs, arguments = store.parcel(writes)
        self._asked = store.wire.depart(_COMMIT, arguments)
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
                self.grounded = any(_leaves_open(row, self._writes[row[0]]) for row in self._rows)
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
        return self._store.decided(self._writes, self._store.told(self._writes, self._refs, rows))

    def give_up(self) -> None:
        self._store.wire.drop()
