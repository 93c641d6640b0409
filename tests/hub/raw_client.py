"""Requests to a hub over separate sockets, their complete responses, and the worker that sent each."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.hub.hub_process import RunningHub
from tests.waiting import SECONDS_MAX, until

CHANGING = ("POST", "PUT", "PATCH")


class HubResponse(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def is_final(self) -> bool:
        """Return whether the response asks the client neither to wait nor to retry."""
        return self.status < 500 and "retry-after" not in self.headers

    @property
    def problem(self) -> str:
        """The code of a problem response, after a check of the whole response."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status, self
        assert problem["type"] == f"urn:onceward:problem:{problem['code']}"
        assert problem["title"]
        assert problem["detail"]
        assert "Traceback" not in self.body.decode()
        return str(problem["code"])


class Caller:
    """Sends requests to one hub, as one principal, on `connection` if it is given, else each on a new one."""

    def __init__(
        self, port: int, token: str | None = None, connection: http.client.HTTPConnection | None = None
    ) -> None:
        self.port = port
        self._token = token
        self._connection = connection

    def __call__(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str | None] | None = None,
        data: bytes | None = None,
    ) -> HubResponse:
        """`content` is sent as JSON, `data` as it is. A header that is None is left out. A cut connection is `OSError`."""
        lines: dict[str, str | None] = {}
        if self._token is not None:
            lines["Authorization"] = f"Bearer {self._token}"
        if key is not None:
            lines["Idempotency-Key"] = key
        if method in CHANGING:
            lines["Content-Type"] = "application/json"
            data = json.dumps(content).encode() if data is None else data
        lines |= headers or {}
        connection = self._connection or open_connection(self.port)
        try:
            connection.request(method, path, data, {name: value for name, value in lines.items() if value is not None})
            response = connection.getresponse()
            body = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        finally:
            if self._connection is None:
                connection.close()
        return HubResponse(response.status, {name.lower(): value for name, value in response.getheaders()}, body)

    def get(self, path: str, **options: Any) -> HubResponse:
        return self("GET", path, **options)

    def post(self, path: str, content: Any = None, **options: Any) -> HubResponse:
        return self("POST", path, content, **options)

    def topic(self, title: str = "fire") -> str:
        """Create a topic, and return its id."""
        made = self.post("/api/v1/topics", {"title": title})
        assert made.status == 201, made
        return str(made.json["topic"]["id"])

    def request_until_final(self, method: str, path: str, content: Any = None, *, key: str) -> HubResponse:
        """Behave like a good client: send the same request with the same key, until the response is final."""

        def ask() -> HubResponse | None:
            try:
                answer = self(method, path, content, key=key, headers={"Prefer": "wait=5"})
            except OSError:
                return None
            return answer if answer.is_final else None

        return until(ask, f"{key} was never answered")


def open_connection(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)


# The process that serves a connection.


def workers_of(hub: RunningHub) -> list[int]:
    """Return the process ids of the workers that respond now, or of the hub itself if it has none."""
    children = Path(f"/proc/{hub.process.pid}/task/{hub.process.pid}/children").read_text("ascii").split()
    # Python's own helper, which cleans up after workers, is a child too.
    workers = [int(child) for child in children if b"spawn_main" in _command(int(child))]
    return workers or [hub.process.pid]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def connections_by_worker(hub: RunningHub, each: int) -> dict[int, list[http.client.HTTPConnection]]:
    """Open this many connections to each of the hub's workers.

    Workers accept from one socket, and on a busy machine one of them may accept everything. So a worker that has enough
    is stopped until the others have theirs.
    """
    workers = workers_of(hub)
    found: dict[int, list[http.client.HTTPConnection]] = {worker: [] for worker in workers}
    deadline = time.monotonic() + SECONDS_MAX
    with ExitStack() as opened, ExitStack() as stopped:
        while any(len(some) < each for some in found.values()):
            assert time.monotonic() < deadline, f"of {workers} not all answer"
            connection = opened.enter_context(closing(open_connection(hub.port)))
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
            assert connection.sock is not None
            worker = owner(connection.sock, workers)
            if worker is None:
                connection.close()
                continue
            found[worker].append(connection)
            if len(found[worker]) == each and len(workers) > 1:
                os.kill(worker, signal.SIGSTOP)
                stopped.callback(os.kill, worker, signal.SIGCONT)
        opened.pop_all()
    return found


def owner(client: socket.socket, workers: list[int]) -> int | None:
    """Return the worker that has the other end of a connection on this machine."""
    ours, theirs = client.getsockname()[1], client.getpeername()[1]
    inode = ""
    for line in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        fields = line.split()
        ports = tuple(int(place.rpartition(":")[2], 16) for place in fields[1:3])
        if ports == (theirs, ours):
            inode = fields[9]
    for worker in workers:
        for descriptor in Path(f"/proc/{worker}/fd").iterdir():
            try:
                if str(descriptor.readlink()) == f"socket:[{inode}]":
                    return worker
            except OSError:
                continue
    return None
