"""Server processes as the tests hold them: start, send a request, kill, freeze, thaw.

A worker's socket listens before the worker is there and stays open when it is killed, so that one that replaces it has
its address, and clients that come in between wait in its queue.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from tests.faults.fork_server import ForkServer
from tests.faults.http.raw_client import RawResponse, send_request
from tests.faults.worker_process import Effects, state_of
from tests.waiting import until

# Far beyond what it takes on a busy machine: it ends a test that would hang.
END_SECONDS_MAX = 30.0


class Worker:
    """One address, behind which server processes are started and killed."""

    def __init__(
        self,
        fork_server: ForkServer,
        store: str,
        effects: Effects,
        fault: dict[str, str] | None = None,
        *,
        pace: float = 0.0,
        **options: object,
    ) -> None:
        self._fork_server = fork_server
        self._how = {
            "store": store,
            "effects": str(effects.path),
            "fault": fault or {},
            "pace": pace,
            "options": options,
        }
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self.start()

    def start(self) -> None:
        self.pid = self._fork_server.fork([json.dumps(self._how)], self._listening.fileno(), sys.stderr.fileno())
        self._process = os.pidfd_open(self.pid)

    def send_request(self, path: str, key: str, *, wait: int = 0) -> RawResponse:
        """Send one request with this key. Raises `OSError` if the response is incomplete."""
        return send_request(self.port, path, key, wait=wait)

    def kill(self) -> None:
        """kill -9. Returns when the process is gone."""
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.wait_until_gone()

    def wait_until_gone(self) -> None:
        readable, _, _ = select.select([self._process], [], [], END_SECONDS_MAX)
        assert readable, f"the process {self.pid} did not end"

    def restart(self) -> None:
        """Start another process in place of one that is gone."""
        os.close(self._process)
        self.start()

    def wait_until_frozen(self) -> None:
        """Wait until none of its threads runs."""
        tasks = Path(f"/proc/{self.pid}/task")

        def stands_still() -> bool:
            return all(state_of(thread) == "T" for thread in tasks.iterdir())

        until(stands_still, f"the process {self.pid} does not freeze")

    def thaw(self) -> None:
        signal.pidfd_send_signal(self._process, signal.SIGCONT)

    def close(self) -> None:
        readable, _, _ = select.select([self._process], [], [], 0)
        if not readable:
            self.kill()
        os.close(self._process)
        self._listening.close()
