"""The engine for PostgreSQL: its pool, and the settings of its sessions or, behind a pooler, of its transactions.

Behind a pooler in transaction mode, each transaction may run in another session of the server, and the session then goes
to another client (`store/postgres/pooler.py`). So there the hub sets its settings in each transaction, prepares no
statement, and does not listen for notifications (`events/notifications.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy
from sqlalchemy import event

from onceward.errors import InvalidStoreUrl, install_command
from onceward.store.postgres.pooler import Pooler, pooler_of

# After this time the lock's owner is probably stuck, and the client should retry.
LOCK_SECONDS = 10
# Our transactions are never idle. An idle one belongs to a frozen process, and all writers of the event log may be
# waiting for it.
IDLE_SECONDS = 20

# Overrides the settings of the role or database. Sent as a statement, because poolers refuse these as startup options.
# A prepared statement is planned each time: a plan from when its table was nearly empty would read the whole table
# later, until PostgreSQL analyzes it.
_SETTINGS = f"""
SELECT set_config('lock_timeout', '{LOCK_SECONDS}s', {{is_local}}),
       set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', {{is_local}}),
       set_config('plan_cache_mode', 'force_custom_plan', {{is_local}}),
       set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                                            WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, {{is_local}})
"""
# For the session, or only for this transaction if the server's process id shows that a pooler is in between.
_SESSION = f"""{_SETTINGS.format(is_local="is_pooled")}, is_pooled
FROM (SELECT %(pooler)s::text = 'transaction'
             OR (%(pooler)s::text = '' AND pg_backend_pid() <> %(pid)s::bigint) AS is_pooled) AS session
"""
_LOCAL = _SETTINGS.format(is_local="true")
_CONNECT = {
    "application_name": "onceward",
    "connect_timeout": 5,
    # Detect a server that disappeared without closing the connection.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_FRESH = "onceward_fresh"


def postgres_engine(address: sqlalchemy.URL, pool_size: int, pool_seconds: float) -> sqlalchemy.Engine:
    """Create the engine. It connects on first use. Raises `InvalidStoreUrl` if the URL is not valid."""
    pooler = Pooler.AUTOMATIC
    if "pooler" in address.query:
        pooler = pooler_of("".join(address.query["pooler"]))
        address = address.difference_update_query(["pooler"])
    try:
        engine = sqlalchemy.create_engine(
            address.set(drivername="postgresql+psycopg"),
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_seconds,
            connect_args=_CONNECT,
            # After a unique violation, a writer must see the conflicting row, which is newer than its transaction.
            isolation_level="READ COMMITTED",
        )
        from onceward.hub.db.postgres.connection import DatabaseConnection, database_connection  # noqa: PLC0415  # needs psycopg
    except ModuleNotFoundError:
        raise InvalidStoreUrl(f"the PostgreSQL driver is not installed: {install_command('postgres')}") from None

    found = _Found(is_pooled=pooler is Pooler.TRANSACTION)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> DatabaseConnection:
        connection = DatabaseConnection.connect(*arguments, **options)
        # Until its first statement tells, it is taken for what the last one was.
        connection.is_pooled = found.is_pooled
        return connection

    @event.listens_for(engine, "connect")
    def prepare(connection: DatabaseConnection, record: sqlalchemy.pool.ConnectionPoolEntry) -> None:
        values = {"pooler": pooler.value, "pid": connection.info.backend_pid}
        try:
            row = connection.execute(_SESSION, values).fetchone()
            connection.commit()
        except BaseException:
            connection.close()
            raise
        found.is_pooled = connection.is_pooled = row is None or row[-1]
        connection.is_ready = True
        if connection.is_pooled:
            connection.prepare_threshold = None
        record.info[_FRESH] = True

    @event.listens_for(engine, "checkout")
    def check(connection: DatabaseConnection, record: sqlalchemy.pool.ConnectionPoolEntry, _proxy: object) -> None:
        """Replace connections that were dropped while idle (by a restart, a failover or a proxy)."""
        if not record.info.pop(_FRESH, False) and _is_lost(engine, connection):
            raise sqlalchemy.exc.InvalidatePoolError

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        driver = database_connection(connection)
        if driver.is_pooled and not driver.autocommit:
            connection.exec_driver_sql(_LOCAL)

    return engine


@dataclass
class _Found:
    """Knowledge that the connections of an engine share."""

    is_pooled: bool


def _is_lost(engine: sqlalchemy.Engine, connection: Any) -> bool:
    """Return whether a connection was closed by the other side.

    A pooler closes its clients' connections when it stops, so that looking is enough. Asking it would wait for a
    connection to the server.
    """
    if connection.is_pooled:
        return bool(connection.closed or connection.has_input())
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        if connection.closed or connection.broken:
            return True
        raise
    return False
