"""Clients that follow the log: by pages, over SSE and over the WebSocket.

They resume where they were cut off, and record every id that they received.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from tests.hub.raw_client import Caller, open_connection
from tests.waiting import SECONDS_MAX
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.sync.client import connect

# A client that was cut off tries again after this time.
PAUSE_SECONDS = 0.05
# The time limit of one read of a stream, so that a follower notices that it must stop.
POLL_SECONDS = 0.2


class Follower:
    """A follower, which runs inside its `with` block. `ids` are the received events, `errors` the received errors."""

    def __init__(self, port: int, token: str | None = None, after: int = 0) -> None:
        self.port = port
        self.token = token
        self.ids: list[int] = []
        self.errors: list[dict[str, Any]] = []
        self.closings: list[tuple[int, str]] = []
        self.sessions = 0
        self.cursor = after
        self._more = threading.Condition()
        self._over = threading.Event()
        self._caught_up = threading.Event()
        self._error: BaseException | None = None
        self.socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._caught_up.wait(SECONDS_MAX), f"{type(self).__name__} never began"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self.socket is not None:
            # Readers of the socket wake up.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive()
        if self._error is not None and error is None:
            raise self._error

    def wait_for(self, event_id: int) -> list[int]:
        """Return all ids so far, once this one or a later one is among them."""
        self._wait(lambda: bool(self.ids) and self.ids[-1] >= event_id, f"event {event_id}")
        return list(self.ids)

    def wait_for_session(self, number: int) -> None:
        self._wait(lambda: self.sessions >= number, f"session {number}")

    def wait_for_error(self) -> dict[str, Any]:
        self._wait(lambda: bool(self.errors), "an error")
        return self.errors[0]

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        with self._more:
            while not is_so():
                left = deadline - time.monotonic()
                assert left > 0, f"{type(self).__name__} waits for {what} and has {self.ids[-5:]}, {self._error!r}"
                self._more.wait(min(left, POLL_SECONDS))
                if self._error is not None:
                    raise self._error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    self._follow()
                except (OSError, http.client.HTTPException, ConnectionClosed, InvalidHandshake, InvalidMessage):
                    self._over.wait(PAUSE_SECONDS)
        except BaseException as error:  # noqa: BLE001  # raised in the waiting thread
            self._error = error

    def _follow(self) -> None:
        """Follow over one connection until it ends."""
        raise AssertionError("each kind has its own")

    def _count_session(self) -> None:
        with self._more:
            self.sessions += 1
            self._more.notify_all()

    def _take(self, event_id: int) -> None:
        with self._more:
            self.ids.append(event_id)
            self.cursor = event_id
            self._more.notify_all()

    def _handle_mark(self, message: dict[str, Any]) -> None:
        """Handle a mark, which is a message that is not an event."""
        assert message["type"] != "gap", message
        if message["type"] == "caught_up":
            self._caught_up.set()
        elif message["type"] == "error":
            with self._more:
                self.errors.append(message)
                self._more.notify_all()


class PageFollower(Follower):
    """Follows the log by pages."""

    def _follow(self) -> None:
        connection = open_connection(self.port)
        caller = Caller(self.port, self.token, connection)
        self._count_session()
        try:
            while not self._over.is_set():
                answer = caller.get(f"/api/v1/events?after={self.cursor}&limit=7")
                if answer.status == 503:
                    self._over.wait(PAUSE_SECONDS)
                    continue
                assert answer.status == 200, answer
                message = answer.json
                for event in message["events"]:
                    self._take(event["event_id"])
                assert self.cursor <= message["next_after"], message
                self.cursor = message["next_after"]
                if not message["has_more"]:
                    self._caught_up.set()
                    self._over.wait(0.002)
        finally:
            connection.close()


class SocketFollower(Follower):
    """Follows `/ws`."""

    def _follow(self) -> None:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        with connect(
            f"ws://127.0.0.1:{self.port}/ws", compression=None, additional_headers=headers, open_timeout=SECONDS_MAX
        ) as connection:
            self.socket = connection.socket
            connection.send(json.dumps({"type": "hello", "after_event_id": self.cursor}))
            self._count_session()
            while not self._over.is_set():
                try:
                    message = json.loads(connection.recv(POLL_SECONDS))
                except TimeoutError:
                    continue
                except ConnectionClosed as end:
                    if end.rcvd is not None:
                        self.closings.append((end.rcvd.code, end.rcvd.reason))
                    raise
                if message["type"] == "event":
                    self._take(message["event"]["event_id"])
                else:
                    self._handle_mark(message)


class StreamFollower(Follower):
    """Follows the SSE stream, and sends `Last-Event-ID` as a browser does."""

    def _follow(self) -> None:
        connection = open_connection(self.port)
        headers = {"Last-Event-ID": str(self.cursor)}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request("GET", "/api/v1/events/stream", headers=headers)
            self.socket = connection.sock
            response = connection.getresponse()
            if response.status == 503:
                raise ConnectionError("not now")
            assert response.status == 200, response.read()
            self._count_session()
            block: dict[str, str] = {}
            while not self._over.is_set():
                line = response.readline().decode()
                if not line:
                    raise ConnectionError("the stream is over")
                name, _, value = line.rstrip("\n").partition(": ")
                if name:
                    block[name] = value
                    continue
                self._take_block(block)
                block = {}
        finally:
            connection.close()

    def _take_block(self, block: dict[str, str]) -> None:
        if "data" not in block:
            return
        message = json.loads(block["data"])
        if "event" in block:
            assert message["type"] == block["event"]
            self._handle_mark(message)
        else:
            assert message["event_id"] == int(block["id"])
            self._take(message["event_id"])


KINDS: tuple[type[Follower], ...] = (PageFollower, StreamFollower, SocketFollower)
