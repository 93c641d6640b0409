"""A server process that is stopped with the tests, however they end, and whose folder is removed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import until

END_SECONDS_MAX = 30.0
# A cluster node of Redis opens a second port 10,000 above its own, so both must exist. Below the range the kernel
# hands out.
_PORTS = range(20_000, 30_000)

# Stands between the tests and the server. When the tests end in whatever way, its input ends; then it ends the
# server and removes its folder. A line on the input ends the server and keeps the folder.
KEEPER = """
import ctypes, os, shutil, signal, sys
folder, *command = sys.argv[1:]
child = os.fork()
if child == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.dup2(os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    os.dup2(1, 2)
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
    """The server ended at once, as if its port were taken."""


class ServerProcess:
    """One server. It keeps its port and its data through `stop` and `start`; `close` throws both away.

    `command` is its command line, for the port that it has; `is_up` says whether it is up. `log` is the file in its
    folder that is shown when it does not start. It may use `ports` ports from its own on.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        is_up: Callable[[], bool],
        *,
        log: str = "log",
        ports: int = 1,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"onceward-{name}-"))
        self.port = 0
        self.pid = 0
        self._name = name
        self._command = command
        self._is_up = is_up
        self._log = self.folder / log
        self._port_count = ports
        self._keeper: subprocess.Popen[str] | None = None

    def start_somewhere(self) -> None:
        """Start it for the first time, on a free port."""
        for port in free_ports(self._port_count):
            self.port = port
            with suppress(PortTakenError):
                self.start()
                return
        raise RuntimeError(f"no free port for {self._name}")

    def start(self) -> None:
        """Start it, again on its port with its data, and wait until it answers."""
        if self._keeper is not None:
            return
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", KEEPER, str(self.folder), *self._command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches the tests alone; the server ends after them.
            start_new_session=True,
        )
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline())
        try:
            # Another process may have taken the port since the check; then ours has ended, and the other may respond.
            until(lambda: has_ended(self.pid) or self._is_up(), "an answer")
        except AssertionError as error:
            self.stop()
            raise RuntimeError(f"{self._name} did not start:\n{self.log()}") from error
        if has_ended(self.pid):
            self.stop()
            raise PortTakenError(f"{self._name} ended:\n{self.log()}")

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def stop(self) -> None:
        """Kill it, like a power failure. The data stays for `start`."""
        self._end("keep\n")

    def freeze(self) -> None:
        """Freeze it: connections stay open, and no request gets a response."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self._end("")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, last_word: str) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with suppress(BrokenPipeError):
            keeper.communicate(last_word, timeout=END_SECONDS_MAX)


def free_ports(count: int = 1) -> Iterator[int]:
    """Ports that nobody listens on now, nor on the one 10,000 above; the same holds for the next `count` - 1.

    Each process starts elsewhere in the range.
    """
    start = (os.getpid() * 97 + int(time.monotonic() * 1000)) % len(_PORTS)
    for offset in range(len(_PORTS)):
        port = _PORTS[(start + offset) % len(_PORTS)]
        if all(_is_free(one) and _is_free(one + 10_000) for one in range(port, port + count)):
            yield port


def has_ended(pid: int) -> bool:
    """Return whether it is a zombie: its parent does not wait for it until the server has to end."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
