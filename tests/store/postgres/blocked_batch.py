"""Helpers that block a batch in the middle of its statement in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from onceward.core.claim import Write, WriteResult
from onceward.store.postgres import PostgresStore

LOCK = "SELECT FROM platform_idempotency_keys WHERE key = %s FOR NO KEY UPDATE"


def submitted_until_it_waits(
    pool: ThreadPoolExecutor, store: PostgresStore, watcher: psycopg.Connection, writes: list[Write]
) -> Future[list[WriteResult]]:
    """Commit the writes on another thread. Returns when the server waits for another session's lock."""
    store.read([])
    assert store.connection.driver is not None
    pid = store.connection.driver.info.backend_pid
    future = pool.submit(store.commit, writes)
    waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
    while watcher.execute(waiting, (pid,)).fetchone() is None:
        assert not future.done()
    return future


@contextmanager
def held_up(url: str, key: str) -> Iterator[psycopg.Connection]:
    """Block every change of this key's row in the middle of the statement, until advisory lock 7 is released here."""
    with psycopg.connect(url, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(7)")
        gate.execute(
            "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS"
            f" 'BEGIN IF new.key = ''{key}'' THEN PERFORM pg_advisory_xact_lock_shared(7); END IF; RETURN new; END';"
            " CREATE TRIGGER hold_up BEFORE UPDATE ON platform_idempotency_keys"
            " FOR EACH ROW EXECUTE FUNCTION hold_up()"
        )
        try:
            yield gate
        finally:
            gate.execute("DROP TRIGGER hold_up ON platform_idempotency_keys; DROP FUNCTION hold_up")
