"""A process that has imported the hub and forks hubs: each starts without the second of imports that a new process needs.

Run as `python -m tests.hub.hub_fork_server SOCKET`, the number of an inherited socket. A request on it is the arguments of
`onceward`, the environment and the current folder, with three descriptors: the hub's standard input, its outputs, and a
socket on which the hub sends its process id, and this process sends its exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self

from tests.forked_python.server import end_after

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1
# A request: the environment is the largest part of it.
REQUEST_BYTES_MAX = 150_000
# The imports of a hub that starts.
IMPORTS = (
    "onceward.cli.root_command",
    "onceward.cli.commands.serve",
    "onceward.hub.server.serve",
    "onceward.hub.server.process",
    "onceward.hub.app",
    "onceward.hub.db.migrate",
    "onceward.store.postgres",
    "onceward.store.redis",
    "onceward.store.sqlite",
)


class ForkedHub:
    """A forked hub, with the methods and attributes of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, stdout: IO[str], status: socket.socket) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status
        self._mutex = threading.Lock()

    def poll(self) -> int | None:
        with self._mutex:
            return self._read(0)

    def wait(self, timeout: float | None = None) -> int:
        with self._mutex:
            code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("onceward", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        self._status.close()

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            reply = self._status.recv(64)
            assert reply, "the process that forks hubs is gone; see its error above"
            self.returncode = int(reply)
        return self.returncode


class HubForkServer:
    """The process that forks hubs, as the tests hold it. It ends with the tests, however they end, and all hubs with it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.hub.hub_fork_server", str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal ends the tests first.
                start_new_session=True,
            )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> ForkedHub:
        """Start `onceward` with these arguments, as the leader of a session of its own."""
        request = json.dumps({"arguments": arguments, "environment": dict(environment), "folder": str(folder)})
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reads, writes = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            socket.send_fds(self._socket, [request.encode()], [nothing, writes, theirs.fileno()])
        finally:
            theirs.close()
            os.close(writes)
            os.close(nothing)
        reply = status.recv(64)
        assert reply, "the process that forks hubs is gone; see its error above"
        return ForkedHub(int(reply), os.fdopen(reads, encoding="utf-8"), status)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(number: int) -> None:
    requests = socket.socket(fileno=number)
    # As `python -m onceward` does: the current folder is not a place to import from.
    del sys.path[0]
    for name in IMPORTS:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()
    hubs: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([requests.fileno(), *hubs], [], [])[0]:
            if ready in hubs:
                child, status = hubs.pop(ready)
                _, ended = os.waitpid(child, 0)
                os.close(ready)
                # The test may have closed its end.
                with status, contextlib.suppress(OSError):
                    status.send(str(os.waitstatus_to_exitcode(ended)).encode())
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
            if not message:
                return
            child = os.fork()
            if child == 0:
                requests.close()
                for descriptor, (_, status) in hubs.items():
                    os.close(descriptor)
                    status.close()
                become_hub(json.loads(message), *descriptors)
            reads, writes, status_descriptor = descriptors
            os.close(reads)
            os.close(writes)
            hubs[os.pidfd_open(child)] = child, socket.socket(fileno=status_descriptor)


def become_hub(request: Mapping[str, object], reads: int, writes: int, status: int) -> NoReturn:
    """Run the command with this environment, in this folder. Never outlives the process that forks hubs."""
    from onceward.cli import main  # noqa: PLC0415  # imported long ago

    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for standard, descriptor in enumerate((reads, writes, writes)):
        os.dup2(descriptor, standard)
    os.close(reads)
    os.close(writes)
    environment, arguments = request["environment"], request["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(request["folder"]))
    # It depends on the environment, and something that was imported may have asked for it.
    tempfile.tempdir = None
    sys.argv[1:] = arguments
    with socket.socket(fileno=status) as answers:
        answers.send(str(os.getpid()).encode())
    end_after(lambda: sys.exit(main(arguments)))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
