"""uvicorn's HTTP protocol with limits: on the size and time of a request head, and on the number of connections.

The parser does not limit the size of a head, nor of the trailer after a chunked body, so bytes are counted before they
reach it. All bytes since the last progress count. The end of a head, a part of a body and the end of a message are
progress. A timer runs while a head is incomplete: from its first byte, and on a new connection from the start. If it
expires, the bytes that have arrived are read first: the process itself may have been suspended.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from onceward.http import problem
from onceward.http.problem import Response
from onceward.hub.events.asgi import CONNECTION
from onceward.hub.security_headers import EVERY_RESPONSE
from onceward.hub.server.connection_limits import (
    HEAD_BYTES_MAX,
    HEAD_TOO_LARGE,
    HEADER_LINES_MAX,
    HEALTH_PATH,
    TOO_MANY_CONNECTIONS,
    ConnectionLimits,
)

_NOT_HTTP = problem.problem(
    400,
    "This is not a valid HTTP request: the method is unknown, or the headers or the chunk sizes cannot be parsed.",
)
# After an upgrade, the parser would treat the body as the next request.
_UPGRADE_WITH_BODY = problem.problem(
    400, "A request with a body cannot upgrade the connection. Send it without the Upgrade header."
)
# The WebSocket library refuses longer lines without a response.
_SOCKET_LINE_BYTES_MAX = 8 * 1024
# The headers that it parses.
_SOCKET_HEADERS = (b"connection", b"upgrade", b"sec-websocket-")
# Closing immediately would reset the connection, and a client that is still sending would not see the response.
_LINGER_SECONDS = 2.0
# The event loop calls expired timers before it reads from sockets. It reads from them during this time.
_READ_SECONDS = 0.01


# Position of the parser in a message. Plain integers, because they are compared for every request.
_IDLE, _HEAD, _BODY = range(3)


class _Refused(Exception):  # never leaves the parser
    """Raised in a callback to stop the parser."""


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with `limits`, abortable requests, and problem responses for malformed requests."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits or ConnectionLimits()
        self._phase = _IDLE
        self._bytes_since_progress = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_surplus = False
        self._is_refused = False
        # The response and the reason, set by a callback that refuses.
        self._refusal: tuple[Response, str] | None = None

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._is_surplus = True
            self._limits.enter(self)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        if self._bytes_since_progress + len(data) <= HEAD_BYTES_MAX:
            self._feed(data)
            return
        rest = memoryview(data)
        while rest and not self.transport.is_closing():
            room = HEAD_BYTES_MAX - self._bytes_since_progress
            if not room:
                self._refuse(HEAD_TOO_LARGE, "head_too_large")
            elif self._feed(rest[:room]):
                rest = rest[room:]
                continue
            return

    def _feed(self, data: bytes | memoryview) -> bool:
        """Feed the parser. Return whether it accepts more."""
        self._bytes_since_progress += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._unsupported_upgrade_warning()
            return False
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (_NOT_HTTP, "not_http")))
            return False
        if self._bytes_since_progress and self._phase != _BODY:
            self._start_timer()
        return True

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _HEAD
        # At least one byte of the message has arrived, even if in the same piece as the end of the previous one.
        self._bytes_since_progress = self._bytes_since_progress or 1
        self.scope["extensions"] = extended({}, {CONNECTION: _AbortableConnection(self.transport)})

    def on_headers_complete(self) -> None:
        if self._is_surplus:
            self._check_surplus()
        if len(self.headers) > HEADER_LINES_MAX:
            self._stop(HEAD_TOO_LARGE, "head_too_large")
        upgrades = self.parser.should_upgrade()
        if upgrades:
            self._check_upgrade()
        self._stop_timer()
        self._phase, self._bytes_since_progress = _BODY, 0
        super().on_headers_complete()
        # Trailers must not become headers of the request. For an upgrade, uvicorn still reads the headers.
        self.headers = list(self.headers) if upgrades else []
        if self._is_surplus:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._bytes_since_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase, self._bytes_since_progress = _IDLE, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase == _BODY and not self.transport.is_closing():
            # The response was sent before the whole body arrived. Limit the time for the rest.
            self._start_timer()

    # Refusing.

    def _check_surplus(self) -> None:
        self._limits.leave(self)
        if len(self.connections) <= self._limits.max_connections:
            self._is_surplus = False
        elif self.url.partition(b"?")[0] != HEALTH_PATH:
            self._stop(TOO_MANY_CONNECTIONS, "too_many_connections")

    def _check_upgrade(self) -> None:
        if self._should_upgrade():
            if self._longest_line() > _SOCKET_LINE_BYTES_MAX:
                self._stop(HEAD_TOO_LARGE, "head_too_large")
            if not all(value.isascii() for name, value in self.headers if name.startswith(_SOCKET_HEADERS)):
                # The WebSocket library would respond with 500, or fail.
                self._stop(_NOT_HTTP, "not_http")
        elif any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        ):
            self._stop(_UPGRADE_WITH_BODY, "not_http")

    def _longest_line(self) -> int:
        return max(len(self.url), *(len(name) + len(value) for name, value in self.headers)) + len(b"GET  HTTP/1.1\r\n")

    def _stop(self, response: Response, reason: str) -> None:
        self._refusal = response, reason
        raise _Refused

    def close_surplus(self) -> None:
        """Close this surplus connection to make room for a newer one."""
        if not self.transport.is_closing():
            self._refuse(TOO_MANY_CONNECTIONS, "too_many_connections")

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(_NOT_HTTP, "not_http")

    def _refuse(self, response: Response, reason: str) -> None:
        """Respond without the application, and close."""
        self._is_refused = True
        self._stop_timer()
        self._limits.refusals.add(reason, self.client[0] if self.client else None)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            is_its_own = self._phase == _BODY and not self.pipeline
            if not is_its_own or cycle.response_started:
                # The client would take this for a part of the response in progress, or for that to an earlier request.
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        headers = [*self.server_state.default_headers, *response.headers, *EVERY_RESPONSE, (b"connection", b"close")]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[response.status] + head + b"\r\n" + response.body)
        if response is HEAD_TOO_LARGE and self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_seconds, self._read_what_arrived)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read_what_arrived(self) -> None:
        self._timer = self.loop.call_later(_READ_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self.flow.read_paused:
            # The head is late because the server itself has paused reading.
            self._start_timer()
        elif not self.transport.is_closing():
            self._limits.refusals.add("slow_head", self.client[0] if self.client else None)
            self.transport.close()


def extended(extensions: Any, ours: dict[str, object]) -> dict[str, Any]:
    """Merge two dicts of extensions. Untyped, because the server's types allow only empty extensions."""
    return {**(extensions or {}), **ours}


class _AbortableConnection:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def cut(self, last: bytes, number: int, reason: str) -> None:
        """Abort immediately: a browser remembers the id of the last event that it read, and resumes by itself."""
        del last, number, reason
        self._transport.abort()
