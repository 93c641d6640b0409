"""Request log: one line and one count for each request, and one format for all logs of the process.

A line never contains a token, a query string or a body. Every response has an `X-Request-ID`: the client's if it is
valid, else a new one. All lines that are logged during the request have it, too.
"""

from __future__ import annotations

import contextvars
import json
import logging
import os
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from onceward.core.log_event import LogEvent
from onceward.http.asgi_types import App, Message, Receive, Send
from onceward.hub.security_headers import EVERY_RESPONSE, browser_headers
from onceward.hub.web.metrics import RouteTemplates, http_counts
from onceward.hub.web.problems import ProblemMiddleware

LOGGER = "onceward.request"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
# Longer paths are truncated in the log.
_PATH_CHARACTERS_MAX = 256
# Close codes of a WebSocket that ends without a code, or without a close frame (RFC 6455, 7.4.1).
_CLOSED_WITHOUT_CODE = 1005
_ABNORMAL = 1006
_ACCEPTED = 101
_REFUSED = 403
# The status of a request without a response, because it was cancelled or its client disconnected. nginx uses it, too.
_UNANSWERED = 499

_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("onceward_request_id", default="")


def current_request_id() -> str:
    """Return the id of the request that is being handled, or an empty text outside of a request."""
    return _request_id.get()


def configure(log_format: str = "auto", log_level: str = "info", stream: TextIO | None = None) -> None:
    """Make every logger of this process write to `stream` (default: standard error) as `console` or `json`.

    `auto` means `console` on a terminal, else `json`.
    """
    stream = stream or sys.stderr
    json_lines = log_format == "json" or (log_format == "auto" and not stream.isatty())
    level = logging.getLevelNamesMapping()[log_level.upper()]
    handler = JsonHandler(stream) if json_lines else logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if json_lines else _console_formatter(colors=stream.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
    # Our own lines have more fields, and omit the query string.
    logging.getLogger("uvicorn.access").disabled = True
    logging.getLogger("uvicorn.error").addFilter(_is_no_access_line)
    # It logs every URL, and the URL of a webhook may contain a secret.
    logging.getLogger("httpx").setLevel(max(level, logging.WARNING))


def _is_no_access_line(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith('%s - "WebSocket')


class JsonFormatter(logging.Formatter):
    """Formatter that writes a record as one JSON object: its event, level, logger and `extra` fields, and the time.

    The text is that of structlog's `JSONRenderer` with the processors of the console, in a quarter of the time.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = record.msg
        event: dict[str, Any] = {"event": message.name if isinstance(message, LogEvent) else record.getMessage()}
        if record.stack_info:
            event["stack_info"] = record.stack_info
        event["level"] = record.levelname.lower()
        event["logger"] = record.name
        event |= {name: value for name, value in record.__dict__.items() if name not in _RECORD_ATTRIBUTES}
        if "request_id" not in event and (found := _request_id.get()):
            event["request_id"] = found
        event["time"] = _now()
        if record.exc_info and record.exc_info[1] is not None:
            event["exception"] = self.formatException(record.exc_info)
        return _JSON.encode(event)


class JsonHandler(logging.StreamHandler[TextIO]):
    """Handler of JSON lines that can also write a line without a log record, which takes longer to make than to write."""

    def write(self, logger: str, event: str, fields: dict[str, Any]) -> None:
        """Write the line of `logger.info(event, extra=fields)`. The fields include the request id."""
        self.acquire()
        try:
            line = _JSON.encode({"event": event, "level": "info", "logger": logger, **fields, "time": _now()})
            self.stream.write(line + self.terminator)
            self.flush()
        except Exception:  # noqa: BLE001  # as in `emit`: a full disk must not fail the request
            self.handleError(logging.makeLogRecord({"name": logger, "msg": event, **fields}))
        finally:
            self.release()


def log_line(logger: logging.Logger, event: str, fields: dict[str, Any]) -> None:
    """Call `logger.info(event, extra=fields)`, or do the same faster if nothing but a `JsonHandler` would see the record.

    The logger must be enabled for this level.
    """
    handlers: list[logging.Handler] = []
    ancestor: logging.Logger | None = logger
    while ancestor is not None:
        handlers += ancestor.handlers
        ancestor = ancestor.parent if ancestor.propagate else None
    handler = handlers[0] if len(handlers) == 1 else None
    if (
        isinstance(handler, JsonHandler)
        and handler.level <= logging.INFO
        and not (handler.filters or logger.filters)
        # Tracing libraries replace it, to add fields to every record.
        and logging.getLogRecordFactory() is logging.LogRecord
    ):
        handler.write(logger.name, event, fields)
    else:
        logger.info(event, extra=fields)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


# The attributes that every record has. The others are the fields of `extra`.
_RECORD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__)
# One encoder for all lines: `json.dumps` would make a new one for each.
_JSON = json.JSONEncoder(default=repr)


def _console_formatter(*, colors: bool) -> logging.Formatter:
    fields: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _named,
        _with_request_id,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    form: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time"),
    ]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=fields, processors=form)


def _named(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Show a `LogEvent` by its name alone: here its fields are shown separately, not inside the message."""
    message = event["_record"].msg
    if isinstance(message, LogEvent):
        event["event"] = message.name
    return event


def _with_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if "request_id" not in event and (found := _request_id.get()):
        event["request_id"] = found
    return event


class RequestLogMiddleware:
    """Outermost middleware: logs and counts each response as the client gets it."""

    def __init__(self, app: App) -> None:
        # Exceptions become responses inside this middleware, so that the log line has the client's status.
        self.app = ProblemMiddleware(app)
        self._counts = http_counts()
        self._templates = RouteTemplates(app)
        self._log = logging.getLogger(LOGGER)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case _:
                await self.app(scope, receive, send)

    async def _http(self, scope: Any, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request_id = request_id_of(scope["headers"])
        id_header = (b"x-request-id", request_id.encode())
        status, size, replayed, streams = 0, 0, False, False
        counts = self._counts

        async def watched_send(message: Message) -> None:
            nonlocal status, size, replayed, streams
            if message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            elif message["type"] == "http.response.start":
                status = message["status"]
                headers = message.get("headers", ())
                own = dict(headers)
                replayed = b"idempotent-replayed" in own
                streams = own.get(b"content-type", b"").startswith(b"text/event-stream")
                if streams:
                    counts.stream_opened()
                message = {**message, "headers": [*headers, id_header, *browser_headers(own)]}
            await send(message)

        token = _request_id.set(request_id)
        try:
            await self.app(scope, receive, watched_send)
        finally:
            seconds = time.perf_counter() - began
            route = self._templates.of(scope)
            counts.count_response(scope["method"], route, status or _UNANSWERED)
            if streams:
                counts.stream_closed()
            else:
                counts.observe_seconds(route, seconds)
            if self._log.isEnabledFor(logging.INFO):
                fields = _fields(scope, scope["method"], status or _UNANSWERED, seconds)
                log_line(self._log, "request", {**fields, "bytes": size, "replayed": replayed})
            _request_id.reset(token)

    async def _websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        request_id = request_id_of(scope["headers"])
        id_header = (b"x-request-id", request_id.encode())
        code, status = 0, 0
        counts = self._counts

        async def watched_send(message: Message) -> None:
            nonlocal code, status
            match message["type"]:
                case "websocket.accept":
                    status = _ACCEPTED
                    counts.stream_opened()
                case "websocket.close":
                    code = code or message.get("code", 1000)
                case "websocket.http.response.start":
                    status = message["status"]
                    message = {**message, "headers": [*message.get("headers", ()), id_header, *EVERY_RESPONSE]}
            await send(message)

        async def watched_receive() -> Message:
            nonlocal code
            message = await receive()
            if message["type"] == "websocket.disconnect":
                code = code or message.get("code", _CLOSED_WITHOUT_CODE)
            return message

        token = _request_id.set(request_id)
        try:
            await self.app(scope, watched_receive, watched_send)
        finally:
            # The server responds with 403 if a WebSocket is closed before it was accepted.
            status = status or _REFUSED
            if status == _ACCEPTED:
                counts.stream_closed()
            counts.count_response("GET", self._templates.of(scope), status)
            if self._log.isEnabledFor(logging.INFO):
                fields = _fields(scope, "GET", status, time.perf_counter() - began)
                close_code = code or _ABNORMAL if status == _ACCEPTED else None
                log_line(self._log, "websocket", {**fields, "close_code": close_code})
            _request_id.reset(token)


def request_id_of(headers: Any) -> str:
    """Return the request's own id if it is valid, else a new one."""
    for name, value in headers:
        if name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                return str(value, "ascii")
            break
    return os.urandom(8).hex()


def _fields(scope: Any, method: str, status: int, seconds: float) -> dict[str, Any]:
    principal = scope.get("state", {}).get("principal")
    client = scope.get("client")
    return {
        "method": method,
        "path": shown_path(scope),
        "status": status,
        "duration_ms": round(seconds * 1000, 2),
        "principal": getattr(principal, "name", None),
        "token_id": getattr(principal, "token_id", None),
        "client": client[0] if client else None,
        "request_id": _request_id.get(),
    }


def shown_path(scope: Any) -> str:
    """Return the path as it was sent, without its query, escaped for a terminal."""
    raw = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    text: str = raw[:_PATH_CHARACTERS_MAX].decode("latin-1")
    return text if text.isascii() and text.isprintable() else text.encode("unicode_escape").decode("ascii")
