"""Back ends for tests: a table with separate data for each test on every store.

Servers are started once for each worker process, when the first test needs them, and stopped at its end. A server
that does not start is an error: nothing is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.store import Clock, Store
from onceward.store.memory import MemoryStore
from onceward.store.open import open_store

if TYPE_CHECKING:
    import psycopg
    from tests.servers.pgbouncer import Pgbouncer
    from tests.servers.postgres import PostgresServer
    from tests.servers.redis import RedisCluster, RedisServer
    from tests.servers.s3 import S3Server
    from tests.servers.s3_relay import S3Relay

# A new database costs a quarter of a second; emptying the one of this process costs a few milliseconds. A lock that
# an earlier test left behind is an error within this time, and not a suite that hangs.
_EMPTY = """
DO $$ BEGIN
    IF to_regclass('platform_idempotency_keys') IS NOT NULL THEN
        DELETE FROM platform_idempotency_chunks;
        DELETE FROM platform_idempotency_keys;
    END IF;
END $$
"""


# ruff: noqa: PLC0415  # Servers are imported when they are used: the library is tested without them.


class Servers:
    """The servers of this process, each started on first use."""

    def __init__(self) -> None:
        self._running = ExitStack()

    @cached_property
    def postgres(self) -> PostgresServer:
        from tests.servers.postgres import PostgresServer

        return self._running.enter_context(PostgresServer())

    @cached_property
    def pgbouncer(self) -> Pgbouncer:
        """A pooler in transaction mode in front of `postgres`, with fewer connections than a test has stores."""
        from tests.servers.pgbouncer import Pgbouncer

        return self._running.enter_context(Pgbouncer(self.postgres, pool_size=2))

    @cached_property
    def redis(self) -> RedisServer:
        from tests.servers.redis import RedisServer

        return self._running.enter_context(RedisServer())

    @cached_property
    def redis_cluster(self) -> RedisCluster:
        from tests.servers.redis import RedisCluster

        return self._running.enter_context(RedisCluster())

    @cached_property
    def valkey(self) -> RedisServer:
        from tests.servers.redis import RedisServer

        return self._running.enter_context(RedisServer(kind="valkey"))

    @cached_property
    def valkey_cluster(self) -> RedisCluster:
        from tests.servers.redis import RedisCluster

        return self._running.enter_context(RedisCluster(kind="valkey"))

    @cached_property
    def s3(self) -> S3Server:
        from tests.servers.s3 import start_s3

        return self._running.enter_context(start_s3())

    @cached_property
    def partial_s3(self) -> S3Relay:
        """The same server, answering parts as S3 does."""
        from tests.servers.s3_relay import S3Relay

        return self._running.enter_context(S3Relay(self.s3.port))

    @cached_property
    def _database(self) -> tuple[str, psycopg.Connection]:
        import psycopg

        url = self.postgres.create_database()
        connection = self._running.enter_context(psycopg.connect(url, autocommit=True))
        connection.execute("SET lock_timeout = '5s'")
        return url, connection

    def emptied_database(self) -> str:
        """The URL of this process's database without entries. Its tables stay, if a store has made them."""
        url, connection = self._database
        connection.execute(_EMPTY)
        return url

    def close(self) -> None:
        self._running.close()


@dataclass(frozen=True, slots=True)
class Backend:
    """`url` gives the address of empty data that no other test has; `folder` is the test's own."""

    name: str
    url: Callable[[Servers, Path], str]


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("memory", lambda _, __: "memory:"),
        Backend("sqlite", lambda _, folder: f"sqlite:///{folder / 'ledger.db'}"),
        Backend("postgres", lambda servers, _: servers.emptied_database()),
        Backend("redis", lambda servers, _: servers.redis.fresh_url()),
        Backend("redis-cluster", lambda servers, _: servers.redis_cluster.fresh_url()),
        Backend("valkey", lambda servers, _: servers.valkey.fresh_url()),
        Backend("valkey-cluster", lambda servers, _: servers.valkey_cluster.fresh_url()),
    )
}
# One for each kind of store. A cluster is the same store on other ground; the contract covers it.
ONE_OF_EACH_KIND = ("memory", "sqlite", "postgres", "redis")
# Valkey takes turns with Redis, so that each suite runs on both and takes no longer. `make test-backends` chooses one
# server, and runs everything on it.
IS_REDIS_CHOSEN = "ONCEWARD_REDIS" in os.environ
ALL_KINDS = (*ONE_OF_EACH_KIND, "redis-cluster")
PERSISTENT_KINDS = ("sqlite", "postgres", "redis", "redis-cluster" if IS_REDIS_CHOSEN else "valkey-cluster")
PIPELINED = ("postgres", "redis" if IS_REDIS_CHOSEN else "valkey")


class Opener:
    """Opens one URL again and again and closes what it opened. All openings of `memory:` are one store, as all
    openings of a file are one file.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Store] = []

    def __call__(self, clock: Clock | None = None) -> Store:
        if self._opened and isinstance(self._opened[0], MemoryStore):
            return self._opened[0]
        self._opened.append(open_store(self.url, clock=clock))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()
