"""A process with everything imported that forks workers: each starts within milliseconds instead of a third of a second.

Run as `python -m tests.faults.fork_server SOCKET MODULE`: the number of an inherited socket, and the module whose `main` a
worker runs. A request on the socket is the worker's arguments and the two descriptors it is to have as its standard
input and output; the answer is the worker's process id.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The drivers, which a worker would otherwise import on first use.
from onceward.store.postgres import PostgresStore
from onceward.store.redis import RedisStore
from onceward.store.sqlite import SqliteStore

REPOSITORY = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1

_imported = (PostgresStore, RedisStore, SqliteStore)


class ForkServer:
    """The process that forks workers, as the tests hold it."""

    def __init__(self, module: str = "tests.faults.ledger_worker") -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.faults.fork_server", str(theirs.fileno()), module]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[theirs.fileno()])
        theirs.close()

    def fork(self, arguments: list[str], reads: int, writes: int) -> int:
        """Start a worker; gives its process id."""
        socket.send_fds(self._socket, [json.dumps(arguments).encode()], [reads, writes])
        return int(self._socket.recv(64))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(number: int, module: str) -> None:
    requests = socket.socket(fileno=number)
    main = importlib.import_module(module).main
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead vanish at once
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 4096, 2)
        if not message:
            return
        child = os.fork()
        if child == 0:
            requests.close()
            _become_worker(main, descriptors, json.loads(message))
        requests.send(str(child).encode())
        for descriptor in descriptors:
            os.close(descriptor)


def _become_worker(main: Callable[..., Any], descriptors: list[int], arguments: list[str]) -> None:
    """Never outlives the fork server, not even frozen."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    main(*arguments)
    sys.exit()


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
