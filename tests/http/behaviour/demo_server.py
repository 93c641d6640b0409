"""The demo as the tests hold it: a real server process on a real loopback socket, and a client of it.

The socket listens before its server starts and stays open when the server is killed: clients wait in its queue instead
of being refused, so nobody asks whether the server is up, and a server that replaces a killed one has its address.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from examples.demo.world import World
from tests.http.behaviour.trials import Gates
from tests.waiting import until

REPOSITORY = Path(__file__).parents[3]
# Far longer than a response takes on a busy machine: it ends a test that would hang.
ANSWER_SECONDS_MAX = 60.0
END_SECONDS_MAX = 20.0

ASGI = ("starlette", "fastapi", "litestar", "django-asgi")
WSGI = ("flask", "django-wsgi")


class ForkServer:
    """The process that forks servers, as the tests hold it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.http.behaviour.fork_server", str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=REPOSITORY, pass_fds=[theirs.fileno()])
        theirs.close()

    def fork(self, how: dict[str, Any], listening: int, log: int) -> int:
        """Start a server; gives its process id."""
        socket.send_fds(self._socket, [json.dumps(how).encode()], [listening, log])
        answer = self._socket.recv(64)
        assert answer, "the fork server is gone; see its error above"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class DemoServer:
    """One server of the demo. It lives until `close`; `kill` and `start` may come and go in between."""

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        framework: str,
        store: str,
        *,
        authenticated: bool = False,
        hooks: bool = False,
        **options: object,
    ) -> None:
        self.framework = framework
        self.store = store
        self.world = World(folder / "world.db")
        self.gates = Gates(folder)
        self._fork_server = fork_server
        self._log = folder / "log"
        self._how: dict[str, Any] = {
            "framework": framework,
            "store": store,
            "folder": str(folder),
            "authenticated": authenticated,
            "hooks": hooks,
            "options": {"metrics": False, **options},
        }
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address: tuple[str, int] = self._listening.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        # A connection for each request: none is left over from a server that was killed.
        limits = httpx.Limits(max_keepalive_connections=0)
        # Cookies are dropped between requests: they would make the client another user.
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self.client = httpx.Client(
            base_url=self.url, timeout=ANSWER_SECONDS_MAX, limits=limits, cookies=cookies, trust_env=False
        )
        self.start()

    def start(self, **options: object) -> None:
        """Start it; also again, with other options."""
        self._how["options"].update(options)
        with self._log.open("ab") as log:
            self.pid = self._fork_server.fork(self._how, self._listening.fileno(), log.fileno())
        self._process = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """kill -9, the server and whatever it started. Returns when it is gone."""
        os.killpg(self.pid, signal.SIGKILL)
        self.wait_for_end()

    def terminate(self) -> None:
        """SIGTERM, as a deploy sends it; `wait_for_end` waits until the server has ended by itself."""
        os.kill(self.pid, signal.SIGTERM)

    def wait_for_end(self) -> None:
        readable, _, _ = select.select([self._process], [], [], END_SECONDS_MAX)
        os.close(self._process)
        self._process = -1
        assert readable, f"the server {self.pid} did not end"

    def close(self) -> None:
        self.client.close()
        if self._process >= 0:
            self.kill()
        self._listening.close()

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def wait_for_log(self, text: str) -> str:
        """Return the log once it contains this text."""
        until(lambda: text in self.log(), f"the log never said {text!r}")
        return self.log()

    def runs(self, name: str) -> int:
        """Return how often the trial of this name ran."""
        return self.world.effects("trial", name)

    def send(self, method: str, path: str, key: str | None = None, *, user: str = "ada", **more: Any) -> httpx.Response:
        """Send one request as a user with a bearer token; without a token for the user `""`."""
        headers = dict(more.pop("headers", {}))
        if user:
            headers.setdefault("Authorization", f"Bearer {user}-token")
        if key is not None:
            headers["Idempotency-Key"] = key
        return self.client.request(method, path, headers=headers, **more)

    def post(self, path: str, key: str | None = None, **more: Any) -> httpx.Response:
        return self.send("POST", path, key, **more)

    def trial(
        self, name: str, key: str | None, plan: Any = None, *, rule: str = "plain", **more: Any
    ) -> httpx.Response:
        """Run a trial by its plan."""
        return self.post(f"/api/trials/{rule}/{name}", key, json=plan or {}, **more)

    def raw(self, path: str, key: str | None, plan: Any, *, headers: str = "", user: str = "ada") -> socket.socket:
        """Send a request and keep the connection, to read or to drop it."""
        connection = socket.create_connection(self.address, timeout=ANSWER_SECONDS_MAX)
        # To the byte as the client's `json=` writes it.
        body = json.dumps(plan, ensure_ascii=False, separators=(",", ":")).encode()
        key_line = f"Idempotency-Key: {key}\r\n" if key else ""
        user_line = f"Authorization: Bearer {user}-token\r\n" if user else ""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{user_line}{key_line}{headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        return connection


def new_name() -> str:
    """Return a name that no other test uses for a key, a trial or a gate."""
    return uuid4().hex


def is_replay(response: httpx.Response) -> bool:
    return bool(response.headers.get("idempotent-replayed") == "true")


def assert_problem(response: httpx.Response, status: int, code: str, detail: str | None = None) -> None:
    """Check that this is a problem response as in RFC 9457 and the contract."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    content = response.json()
    assert (content["status"], content["code"]) == (status, code)
    assert content["type"] == f"urn:onceward:problem:{code}"
    assert content["title"]
    assert content["detail"] if detail is None else content["detail"] == detail


BUSY = (409, "conflict", "Request is being processed")
MISMATCH = (422, "unprocessable", "Idempotency key already used with different request")
