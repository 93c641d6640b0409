"""The PostgreSQL store: one connection, one round trip for each batch.

The rules of the claim machine are decided inside the database, by `postgres_commit.sql`, because only there can rows be
judged and locked without a second trip. The contract suite holds them equal to `core.claim`.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import TypeVar

from onceward.core.claim import Answer, Begin, Ref, Status, Write
from onceward.errors import InvalidStoreUrl, SchemaTooNew, StoreClosed, StoreUnavailable
from onceward.store import SCHEMA_VERSION, BatchFailed, Clock, Page, Reading
from onceward.store.bind import POSTGRES, Binding, session_for
from onceward.store.held import Held
from onceward.store.memory import cursor
from onceward.store.postgres_rows import pieces, read_record, to_answer, to_entry, write_record

try:
    import psycopg
    from psycopg.abc import PQGen
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import TupleRow
except ImportError as missing:
    raise InvalidStoreUrl("PostgreSQL stores need psycopg: pip install 'onceward[postgres]'") from missing

# A statement that waits for others gives up first, then one that is slow, and last we give up on the server itself.
# In this order, because only the last leaves open whether the batch was applied.
LOCK_SECONDS = 2
STATEMENT_SECONDS = 4
ANSWER_SECONDS = 5
# Opening may wait for another process that creates the tables.
OPEN_SECONDS = 20

_CONNECT = {
    "application_name": "onceward",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    # A server that vanished without a word is noticed even where nothing is asked of it.
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": str(ANSWER_SECONDS * 1000),
}

# Settings a role or database may have changed. `read committed` is what lets each statement of a batch see what others
# have just committed; `synchronous_commit` may be stronger than `on`, but not weaker. The planner's settings give one
# plan for every batch, always through the primary key, whatever the statistics say at the moment. Set by a statement,
# because connection poolers refuse them in the connection string.
_SESSION = f"""
SELECT set_config('statement_timeout', '{STATEMENT_SECONDS}s', false),
       set_config('lock_timeout', '{LOCK_SECONDS}s', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)
"""
_COMMIT = "SELECT * FROM onceward_commit_v2(%s::bigint, %s::onceward_write_v2[], %b)"
_SCAN = "SELECT * FROM onceward_scan_v1(%s, %s, %s, %s, %s::integer)"
_PURGE = "SELECT onceward_purge_v1(%s::bigint, %s::integer)"
_SCHEMA = "SELECT schema_version, to_regproc('onceward_commit_v2') IS NOT NULL FROM platform_idempotency_meta"
_CHUNKS = """
SELECT c.data FROM platform_idempotency_keys AS e JOIN platform_idempotency_chunks AS c USING (scope, key)
WHERE e.scope = %s AND e.key = %s AND e.version = %s::bigint AND c.seq > %s::integer ORDER BY c.seq LIMIT %s::integer
"""
# Our advisory locks: the letters "once", and 1 for creating the schema, 2 (inside the functions) for insert and purge.
_LOCKS = 0x6F6E6365

# Classes and codes of errors after which nothing of the batch was applied and the connection is sound.
_REFUSED_DATA = ("22", "23", "54")
_LATER = frozenset({"40001", "40P01", "55P03", "57014"})

_T = TypeVar("_T")

# Connections inherited through a fork: closing one would end the parent's session, so nothing may collect them.
_inherited: list[psycopg.Connection] = []


class _Connection(psycopg.Connection):
    """A connection that does not wait for ever: a frozen server still acknowledges packets, so no socket option helps."""

    seconds: float = OPEN_SECONDS

    def wait(self, gen: PQGen[_T], *_: object, **__: object) -> _T:
        """Psycopg's generators say what they wait for and are told what has come."""
        deadline = time.monotonic() + self.seconds
        try:
            waits_for = next(gen)
            with selectors.DefaultSelector() as selector:
                watched = selector.register(self.pgconn.socket, waits_for)
                while True:
                    come = selector.select(deadline - time.monotonic())
                    if not come:
                        raise TimeoutError("the server does not answer")
                    waits_for = gen.send(come[0][1])
                    if waits_for != watched.events:
                        watched = selector.modify(watched.fd, waits_for)
        except StopIteration as end:
            result: _T = end.value
            return result


class PostgresStore:
    """A ledger in a PostgreSQL database (14 or later), in the first schema of its search path.

    Between here and the server a pooler must keep sessions (not transactions) together: a session has its settings.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._parameters = _parameters(url)
        self._clock = clock
        self._connection: _Connection | None = None
        self._held = Held()
        self._closed = False

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        answers = self._commit(writes)
        # A begin may find an expired entry that is purged before it can be locked; then the key is free: ask again.
        gone = [n for n, write in enumerate(writes) if answers[n].entry is None and isinstance(write, Begin)]
        while gone:
            try:
                again = self._commit([writes[n] for n in gone])
            except BatchFailed as error:
                raise StoreUnavailable(f"only a part of the batch was decided: {error}") from error
            for n, answer in zip(gone, again, strict=True):
                answers[n] = answer
            gone = [n for n in gone if answers[n].entry is None]
        return answers

    def _commit(self, writes: Sequence[Write]) -> list[Answer]:
        refs = [Ref(write.scope, write.key) for write in writes]
        records: list[str] = []
        data: list[bytes] = []
        size = 0
        for n, write in enumerate(writes):
            records.append(write_record(n, write, size, self._held.write_id(write)))
            for piece in pieces(write):
                data.append(piece)
                size += len(piece)
        answers: list[Answer | None] = [None] * len(writes)
        for row in self._call(records, b"".join(data)):
            n = row[0]
            answers[n] = to_answer(row, writes[n], self._held.get(refs[n]))
        told = [answer for answer in answers if answer is not None]
        self._held.note(refs, told)
        return told

    def read(self, refs: Sequence[Ref]) -> Reading:
        # Of no key, if need be, because an answer tells the time even to one who asks for nothing else.
        wanted = list(refs) or [Ref("", "")]
        rows = self._call([read_record(n, ref) for n, ref in enumerate(wanted)], b"")
        found = {row[0]: to_entry(*wanted[row[0]], row[5:]) for row in rows if row[5] is not None}
        return Reading(rows[0][4], tuple(found.get(n) for n in range(len(refs))))

    def _call(self, records: list[str], data: bytes) -> list[TupleRow]:
        arguments = (self._now(), f"{{{','.join(records)}}}", data)
        with self._speaking() as connection:
            return connection.execute(_COMMIT, arguments, prepare=True, binary=True).fetchall()

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        last_scope, _, last_key = after.partition("\x00")
        arguments = (scope, None if status is None else status.value, last_scope, last_key, limit + 1)
        with self._speaking() as connection:
            rows = connection.execute(_SCAN, arguments, prepare=True, binary=True).fetchall()
        page = tuple(to_entry(row[0], row[1], row[2:]) for row in rows[:limit])
        return Page(page, cursor(page[-1].ref) if len(rows) > limit else "")

    def purge(self, limit: int) -> int:
        with self._speaking() as connection:
            return _only(connection.execute(_PURGE, (self._now(), limit), prepare=True, binary=True).fetchone())

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        arguments = (ref.scope, ref.key, version, after, limit)
        with self._speaking() as connection:
            return [row[0] for row in connection.execute(_CHUNKS, arguments, prepare=True, binary=True).fetchall()]

    def bind(self, connection: object) -> Binding:
        """A caller's transaction on this database; it locks the claim's row alone, and nobody waits for it."""
        return Binding(session_for(connection, POSTGRES), POSTGRES, self._clock)

    def abandon(self) -> None:
        self._held.clear()
        if self._connection is not None:
            _inherited.append(self._connection)
            self._connection = None

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _now(self) -> int | None:
        return None if self._clock is None else self._clock()

    def _drop(self) -> None:
        self._held.clear()  # the answer to a write may be lost with it
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _speaking(self) -> Iterator[_Connection]:
        """The open connection; whatever goes wrong leaves as one of our own exceptions."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
        except UnicodeEncodeError as error:
            raise BatchFailed(f"PostgreSQL cannot store this text: {error.reason}") from error
        except TimeoutError as error:
            self._drop()
            raise StoreUnavailable("PostgreSQL does not answer") from error
        except psycopg.Error as error:
            state, reason = error.sqlstate or "", error.diag.message_primary or str(error)
            if state in _LATER:
                raise BatchFailed(f"PostgreSQL gave up on the batch: {reason}", transient=True) from error
            if state.startswith(_REFUSED_DATA) or (isinstance(error, psycopg.DataError) and not state):
                raise BatchFailed(f"PostgreSQL refused the data: {reason}") from error
            self._drop()
            # Not chained: whatever libpq says of a connection, the password stays out of logs.
            raise StoreUnavailable(f"PostgreSQL: {self._without_password(reason)}") from None
        except BaseException:
            # Interrupted in the middle, the connection may still carry the answer to this call.
            self._drop()
            raise

    def _without_password(self, reason: str) -> str:
        password = self._parameters.get("password")
        return reason.replace(password, "***") if password else reason

    def _open(self) -> _Connection:
        if self._closed:
            raise StoreClosed("the PostgreSQL store is closed")
        connection = _Connection.connect(**self._parameters, autocommit=True)  # type: ignore[arg-type]
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        connection.seconds = ANSWER_SECONDS
        return connection


def _parameters(url: str) -> dict[str, str]:
    """What libpq understands, checked before anything is opened. Messages never quote the URL: it has a password."""
    malformed = InvalidStoreUrl(
        "malformed PostgreSQL URL, or an unknown option in it; it looks like postgresql://user:password@host:5432/name"
    )
    if not url.startswith(("postgresql://", "postgres://")):
        raise malformed
    try:
        found = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except (psycopg.Error, UnicodeError):
        raise malformed from None
    if not all(number.isdecimal() and int(number) <= _NUMBER_MAX for number in _numbers(found)):
        raise malformed
    return _CONNECT | found


# The largest port; nobody waits longer than that for a connection, either.
_NUMBER_MAX = 65_535


def _numbers(found: dict[str, str]) -> list[str]:
    """What libpq would only find out when it connects. Several hosts may have a port each."""
    ports = [port for port in found.get("port", "").split(",") if port]
    return [*ports, found.get("connect_timeout", "0")]


def _prepare(connection: _Connection) -> None:
    """Look first; create what is missing, under a lock."""
    version, complete = _schema(connection)
    if not complete and version <= SCHEMA_VERSION:
        version = _create(connection)
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(f"the store has schema {version}, this Onceward knows {SCHEMA_VERSION}: upgrade Onceward")
    connection.execute(_SESSION)


def _create(connection: _Connection) -> int:
    """The lock outlives the transaction on purpose: one begun before the lock was ours would still believe what its
    catalogue cache says, that there is no such table. Should anything fail, closing the connection gives it back.
    """
    connection.execute(f"SET lock_timeout = '{OPEN_SECONDS}s'")
    connection.execute("SELECT pg_advisory_lock(%s, 1)", (_LOCKS,))
    version, complete = _schema(connection)
    if not complete:
        with connection.transaction():
            if version == 0:
                connection.execute(_script("postgres.sql"))
                connection.execute("INSERT INTO platform_idempotency_meta VALUES (1, %s)", (SCHEMA_VERSION,))
                version = SCHEMA_VERSION
            connection.execute(_script("postgres_commit.sql"))
    connection.execute("SELECT pg_advisory_unlock(%s, 1)", (_LOCKS,))
    return version


def _script(name: str) -> bytes:
    return resources.files("onceward.store").joinpath(name).read_bytes()


def _schema(connection: _Connection) -> tuple[int, bool]:
    """The version of the tables, 0 where there are none; and whether the function is there that we call."""
    if not _only(connection.execute("SELECT to_regclass('platform_idempotency_meta') IS NOT NULL").fetchone()):
        return 0, False
    row = connection.execute(_SCHEMA).fetchone()
    return _only(row), row is not None and row[1]


def _only(row: TupleRow | None) -> int:
    if row is None:
        raise AssertionError("a query for one value gave no row")
    value: int = row[0]
    return value
