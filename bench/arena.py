"""Arenas, one per store: its server, its contestants, and the count of their round trips."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psycopg
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

from bench import names
from bench.by_hand import ByHand, Lane, LedgerLane, OneEach, PostgresLane, RedisLane, SqliteLane
from bench.contest import Contestant, Trips, Unable
from bench.load import Scenario
from bench.ours import Awaited, Blocking, OneByOne
from bench.peers.process import PeerProcess
from bench.wire import Counting, count_trips, relay
from onceward import open_ledger
from onceward.ledger import Ledger
from onceward.store import Store
from onceward.store.open import open_store

# With fewer connections, the server cannot group commits. With more, 64 callers were slower on a small machine.
POOL = 16

_NO_SUCH_STORE = {
    names.DBOS: "DBOS stores its state only in SQLite or PostgreSQL.",
    names.IDEMKIT: "idemkit has no SQLite back end.",
    names.CALL4AGENTS: "call4agents stores its records only in SQLite or PostgreSQL.",
}
_MODULES = {
    names.DBOS: ("run_dbos",),
    names.DBOS_WAL: ("run_dbos", "wal"),
    names.IDEMKIT: ("run_idemkit",),
    names.CALL4AGENTS: ("run_call4agents",),
}


@dataclass(frozen=True, slots=True)
class Arena:
    """A running store. `place` returns the URL of an empty database; `port` is the port of its server."""

    store: str
    place: Callable[[], str]
    peers: tuple[str, ...]
    connect: Callable[[str], Lane] | None = None
    one_each: dict[str, int] = field(default_factory=dict)
    port: int | None = None

    def contestants(self, python: Path | None) -> Iterator[Contestant]:
        """Yield contestants in the order of the table. Peers need `python`, the interpreter of their environment."""
        yield Awaited(open_ledger(self.place()))
        yield Blocking(open_ledger(self.place()))
        if self.connect is not None:
            yield Awaited(Ledger(cast("Store", OneByOne(open_store(self.place())))), names.UNSHARED)
            connect, shared = self.connect, self.place()
            yield ByHand(lambda: connect(shared))
            if self.store == names.SQLITE:
                yield ByHand(lambda: LedgerLane(self.place()), names.BY_HAND_LEDGER)
                yield ByHand(lambda: SqliteLane(self.place(), "DELETE"), names.BY_HAND_ROLLBACK)
            for name, lanes in self.one_each.items():
                yield OneEach(name, lambda: connect(shared), lanes)
        if python is None:
            return
        for name in self.peers:
            yield self._peer(python, name, self.place())
        for name, reason in _NO_SUCH_STORE.items():
            if name not in self.peers:
                yield Absent(name, reason)

    def trips(self, python: Path | None) -> dict[str, Trips]:
        """Count the round trips of a fresh and of a replayed call, for each contestant where they can be counted."""
        if self.port is None:
            store = Counting(open_store(self.place()))
            with closing(Blocking(Ledger(store))) as ours:
                return {names.BLOCKING: count_trips(ours.call, lambda: store.trips)}
        found: dict[str, Trips] = {}
        with relay(self.port) as wire:
            with closing(Blocking(open_ledger(wire.url(self.place())))) as ours:
                found[names.BLOCKING] = count_trips(ours.call, lambda: wire.trips)
            if python is None:
                return found
            for name in self.peers:
                with closing(self._peer(python, name, wire.url(self.place()))) as peer:
                    peer.start()
                    found[name] = count_trips(peer.call, lambda: wire.trips)
        return found

    @staticmethod
    def _peer(python: Path, name: str, url: str) -> PeerProcess:
        module, *options = _MODULES[name]
        return PeerProcess(python, name, module, url, *options)


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that cannot use this store."""

    name: str
    reason: str

    def warm(self) -> None:
        raise Unable(self.reason)

    def rate(self, scenario: Scenario, seconds: float) -> float:
        raise Unable(f"{self.reason} ({scenario}, {seconds:g} s)")

    def close(self) -> None: ...


@contextmanager
def arena(store: str, folder: Path) -> Iterator[Arena]:
    """Run a store as a context manager: start its server, if it has one, and stop it at the end."""
    with ExitStack() as stack:
        numbers = itertools.count(1)
        match store:
            case names.MEMORY:
                yield Arena(store, lambda: "memory:", (names.IDEMKIT,))
            case names.SQLITE:
                yield Arena(
                    store,
                    lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}",
                    (names.DBOS, names.DBOS_WAL, names.CALL4AGENTS),
                    SqliteLane,
                    {names.ONE_EACH: 1},
                )
            case names.POSTGRES:
                postgres = stack.enter_context(PostgresServer())
                make_room(postgres)
                yield Arena(
                    store,
                    postgres.create_database,
                    (names.DBOS, names.IDEMKIT, names.CALL4AGENTS),
                    PostgresLane,
                    {names.ONE_EACH: 1, names.ONE_EACH_POOLED: POOL},
                    postgres.port,
                )
            case _:
                options = ("--appendfsync", store.rpartition(" ")[2])
                redis = stack.enter_context(RedisServer(options=options))
                yield Arena(
                    store,
                    lambda: redis.url(next(numbers)),
                    (names.IDEMKIT,),
                    RedisLane,
                    {names.ONE_EACH: 1, names.ONE_EACH_POOLED: POOL},
                    redis.port,
                )


def make_room(server: PostgresServer) -> None:
    """Raise the connection limit: some peers open a connection for each of their threads and keep it open."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET max_connections = 400")
    server.stop()
    server.start()
