"""One log line for each request: its fields, what it never contains, and the same format for all loggers."""

from __future__ import annotations

import errno
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import REGISTRY
from tests.hub.asgi_client import AsgiResponse, Headers, bearer, request, send_request, websocket

from onceward.http.asgi_types import App, Receive, Send
from onceward.http.observer import HttpObserver
from onceward.http.problem import Response
from onceward.http.response.replay import REPLAYED, send_response
from onceward.hub.security.auth import LOCAL
from onceward.hub.web.request_log import JsonFormatter, JsonHandler, RequestLogMiddleware, configure, log_line


@pytest.fixture(name="log")
def _log() -> Iterator[io.StringIO]:
    """Collect the log as JSON. Restores logging afterwards."""
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    before = root.handlers[:], root.level
    stream = io.StringIO()
    configure("auto", "info", stream)
    yield stream
    root.handlers[:], level = before
    root.setLevel(level)
    access.disabled = False


def keep_only_our_handler() -> logging.Handler:
    """Remove the handlers that pytest adds after the fixtures: in a hub there is only its own."""
    root = logging.getLogger()
    (ours,) = root.handlers[:] = [one for one in root.handlers if isinstance(one, JsonHandler)]
    return ours


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def answering(status: int = 200, headers: Headers = (), body: bytes = b"") -> App:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        del receive
        scope["state"]["principal"] = LOCAL
        await send_response(send, Response(status, tuple(headers), body))

    return app


def structlog_line(record: logging.LogRecord) -> str:
    """The same line, rendered by structlog's own processors."""
    fields: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    form: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=fields, processors=form).format(record)


def failure() -> Any:
    try:
        int('"quoted" \n ü')
    except ValueError:
        return sys.exc_info()


def response_to(app: App, method: str, path: str, headers: Headers = (), **more: Any) -> AsgiResponse:
    return send_request(RequestLogMiddleware(app), request(method, path, headers, **more))


def test_a_check_of_a_key_is_an_event_with_a_plain_name_and_its_fields(log: io.StringIO) -> None:
    HttpObserver(metrics=False).checked("order-1", "processing_started", cached=False, seconds=0.001)
    (line,) = lines(log)

    assert (line["event"], line["logger"]) == ("idempotency_check", "onceward.http")
    assert (line["idempotency_key"], line["status"], line["cached"]) == ("order-1...", "processing_started", False)


@pytest.mark.parametrize("alone", [True, False])
def test_a_request_is_one_complete_log_line(log: io.StringIO, alone: bool) -> None:
    if alone:
        keep_only_our_handler()
    answered = response_to(answering(201, (REPLAYED,), b"12345"), "POST", "/api/v1/topics")
    (line,) = lines(log)

    assert line.pop("time").endswith("Z")
    assert line.pop("duration_ms") >= 0
    assert line == {
        "event": "request",
        "level": "info",
        "logger": "onceward.request",
        "method": "POST",
        "path": "/api/v1/topics",
        "status": 201,
        "principal": "local",
        "token_id": None,
        "client": "127.0.0.1",
        "request_id": answered.headers["x-request-id"],
        "bytes": 5,
        "replayed": True,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": {"path": "/\u00fc\u2028\U0001f600", "principal": None, "status": 200, "replayed": True}},
        {"extra": {"path": 'a "quoted" \\ path\t\x7f\x1b', "duration_ms": 0.1 + 0.2, "bytes": 2**70}},
        {"extra": {"ratio": float("nan"), "limit": float("-inf"), "tiny": 1e-300, "lone": "\ud800"}},
        {"extra": {"kind": Response, "names": ("a", {"b": None}), "folder": Path("/x"), "keys": frozenset({"k"})}},
        {"extra": {"request_id": "", "name_of_field": 1, "event": "overwritten", "level": 3}},
        {"extra": {}, "args": ("one", 2), "msg": "%s of %d"},
        {"extra": {"a": 1}, "exc_info": failure()},
        {"extra": {}, "exc_info": (None, None, None)},
        {"extra": {}, "sinfo": "Stack (most recent call last):\n  here"},
        {"extra": {}, "level": logging.CRITICAL},
        {"extra": {}, "level": 7, "msg": 42},
    ],
    ids=lambda fields: next(iter(fields["extra"]), "-".join(fields)),
)
def test_a_json_line_is_what_structlog_would_write(fields: dict[str, Any]) -> None:
    usual = {"name": "onceward.x", "level": logging.INFO, "fn": "x.py", "lno": 1, "msg": "request", "args": ()}
    record = logging.getLogger("onceward.x").makeRecord(**{**usual, "exc_info": None, **fields})
    time = re.compile(r'"time": "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?Z"')

    ours, times = time.subn("TIME", JsonFormatter().format(record))

    assert times == 1
    assert ours == time.sub("TIME", structlog_line(record))


FIELDS = [
    {"method": "GET", "path": "/a?b", "status": 200, "principal": None, "request_id": "abc", "replayed": False},
    {"path": '/\u00fc\U0001f600 "x" \\ \x1b', "duration_ms": 0.1 + 0.2, "request_id": "", "bytes": 2**70},
    {"ratio": float("nan"), "kind": Response, "request_id": "\ud800", "name_of_field": 1},
]


@pytest.mark.parametrize("fields", FIELDS, ids=["usual", "odd", "not-json"])
@pytest.mark.parametrize("event", ["request", "100 % %s {}"])
def test_a_line_without_a_record_is_the_same_line(log: io.StringIO, event: str, fields: dict[str, Any]) -> None:
    logger = logging.getLogger("onceward.request")
    keep_only_our_handler()

    logger.info(event, extra=fields)
    log_line(logger, event, fields)

    with_record, without = re.sub(r'"time": "[^"]*Z"', "TIME", log.getvalue()).splitlines()
    assert without == with_record
    assert with_record.count("TIME") == 1


def test_a_line_is_written_at_once_and_as_a_whole(log: io.StringIO) -> None:
    class Pieces(io.StringIO):
        def write(self, text: str) -> int:
            pieces.append(text)
            return len(text)

        def flush(self) -> None:
            pieces.append("flushed")

    del log
    pieces: list[str] = []
    configure("json", "info", Pieces())
    response_to(answering(), "GET", "/x")

    assert len(pieces) == 2
    assert pieces[0].endswith("}\n")
    assert pieces[1] == "flushed"


def test_a_log_that_cannot_be_written_fails_no_request(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    del log
    configure("json", "info", Full())
    answered = [response_to(answering(201), "GET", "/x") for _ in range(2)]

    assert [one.status for one in answered] == [201, 201]
    assert capsys.readouterr().err.count("--- Logging error ---") == 2


class RecordingHandler(logging.Handler):
    """A handler that another program added."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize("name", ["", "onceward", "onceward.request"])
def test_other_handlers_get_the_record_of_a_request(log: io.StringIO, name: str) -> None:
    seen, logger = RecordingHandler(), logging.getLogger(name)
    keep_only_our_handler()
    logger.addHandler(seen)
    try:
        response_to(answering(201), "GET", "/x")
    finally:
        logger.removeHandler(seen)

    assert [(one.getMessage(), one.__dict__["status"]) for one in seen.records] == [("request", 201)]
    assert len(lines(log)) == 1


def test_a_logger_that_does_not_propagate_writes_nothing_here(log: io.StringIO) -> None:
    logger = logging.getLogger("onceward")
    keep_only_our_handler()
    logger.propagate = False
    try:
        response_to(answering(), "GET", "/x")
    finally:
        logger.propagate = True

    assert log.getvalue() == ""


def test_filters_and_levels_see_the_line_of_a_request(log: io.StringIO) -> None:
    logger, handler = logging.getLogger("onceward.request"), keep_only_our_handler()

    def no_health_checks(record: logging.LogRecord) -> bool:
        return bool(record.__dict__["path"] != "/healthz")

    for owner in (logger, handler):
        owner.addFilter(no_health_checks)
        response_to(answering(), "GET", "/healthz")
        response_to(answering(), "GET", "/x")
        owner.removeFilter(no_health_checks)
    handler.setLevel(logging.WARNING)
    response_to(answering(), "GET", "/x")

    assert [line["path"] for line in lines(log)] == ["/x", "/x"]


def test_a_line_has_the_fields_that_a_record_factory_adds(log: io.StringIO) -> None:
    factory = logging.getLogRecordFactory()
    keep_only_our_handler()

    def traced(*args: Any, **more: Any) -> logging.LogRecord:
        record = factory(*args, **more)
        record.__dict__["trace"] = "t-1"
        return record

    logging.setLogRecordFactory(traced)
    try:
        response_to(answering(), "GET", "/x")
    finally:
        logging.setLogRecordFactory(factory)

    assert lines(log)[0]["trace"] == "t-1"


def test_a_log_line_never_has_a_token_a_key_or_a_query(log: io.StringIO) -> None:
    secret = "s3cret-that-must-not-be-seen"  # noqa: S105  # for this test
    headers = (*bearer(secret), (b"idempotency-key", secret.encode()), (b"cookie", secret.encode()))
    response_to(answering(body=secret.encode()), "POST", f"/x?token={secret}", headers)
    send_request(
        RequestLogMiddleware(refusing_app),
        websocket(f"/ws?token={secret}", headers, offered=["onceward", f"onceward.bearer.{secret}"]),
    )

    assert len(lines(log)) == 2
    assert secret not in log.getvalue()


def test_a_path_cannot_send_control_characters_to_the_terminal(log: io.StringIO) -> None:
    response_to(answering(), "GET", "/x", raw_path=b"/\x1b[31m\xff\n" + b"y" * 5000)
    (line,) = lines(log)

    assert line["path"].startswith("/\\x1b[31m\\xff\\ny")
    assert len(line["path"]) < 300


@pytest.mark.parametrize("sent", [b"abc", b"A-1_b.c:d", b"x" * 64])
def test_a_valid_request_id_of_the_client_is_used(log: io.StringIO, sent: bytes) -> None:
    answered = response_to(answering(), "GET", "/x", ((b"x-request-id", sent),))

    assert answered.headers["x-request-id"] == lines(log)[0]["request_id"] == sent.decode()


@pytest.mark.parametrize("sent", [b"", b"a b", b"x" * 65, b"\x1b[31m", b"a\n", b"\xff"], ids=repr)
def test_any_other_request_id_is_replaced(log: io.StringIO, sent: bytes) -> None:
    answered = response_to(answering(), "GET", "/x", ((b"x-request-id", sent),))

    assert answered.headers["x-request-id"] == lines(log)[0]["request_id"] != sent.decode("latin-1")
    assert len(answered.headers["x-request-id"]) == 16


def test_log_lines_during_a_request_have_its_id(log: io.StringIO) -> None:
    async def app(scope: Any, receive: Receive, send: Send) -> None:
        logging.getLogger("onceward.http").warning("idempotency_check", extra={"status": "in_doubt", "cached": False})
        await answering()(scope, receive, send)

    async def served(scope: Any, receive: Receive, send: Send) -> None:
        await RequestLogMiddleware(app)(scope, receive, send)
        logging.getLogger("onceward.http").warning("later")

    send_request(served, request("GET", "/x", ((b"x-request-id", b"abc"),)))
    check, _, later = lines(log)

    assert (check["event"], check["status"], check["cached"]) == ("idempotency_check", "in_doubt", False)
    assert check["request_id"] == "abc"
    assert "request_id" not in later


async def failing_app(_scope: Any, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("secret")


def test_an_exception_is_a_line_with_500_and_one_with_the_traceback(log: io.StringIO) -> None:
    answered = response_to(failing_app, "GET", "/x", ((b"x-request-id", b"abc"),))
    trace, line = lines(log)

    assert (answered.status, line["status"]) == (500, 500)
    assert "RuntimeError: secret" in trace["exception"]
    assert trace["request_id"] == line["request_id"] == answered.headers["x-request-id"]


async def refusing_app(_scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def streaming_app(_scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    assert open_streams() == before + 1
    await send({"type": "onceward.frames", "data": b"x"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def closing_app(_scope: Any, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": 4001})
    await receive()


def open_streams() -> float:
    return REGISTRY.get_sample_value("onceward_streams") or 0.0


before = 0.0


@pytest.mark.parametrize(
    ("app", "status", "code"),
    [(streaming_app, 101, 1001), (closing_app, 101, 4001), (refusing_app, 403, None), (failing_app, 500, None)],
    ids=["left", "closed", "refused", "failed"],
)
def test_a_websocket_is_one_log_line_at_its_end(log: io.StringIO, app: App, status: int, code: int | None) -> None:
    global before  # noqa: PLW0603  # the streams that other tests left open
    before = open_streams()
    keep_only_our_handler()
    answered = send_request(RequestLogMiddleware(app), websocket("/ws"))
    line = lines(log)[-1]

    assert (line["event"], line["path"]) == ("websocket", "/ws")
    assert (line["status"], line["close_code"]) == (status, code)
    assert line["duration_ms"] >= 0
    assert app is not failing_app or answered.headers["x-request-id"] == line["request_id"]
    assert open_streams() == before


def test_a_client_that_disconnects_before_the_response_is_logged_too(log: io.StringIO) -> None:
    async def silent(scope: Any, receive: Receive, send: Send) -> None:
        pass

    response_to(silent, "GET", "/x")

    assert lines(log)[0]["status"] == 499


def test_uvicorn_uses_the_hubs_log_format_and_its_access_log_is_dropped(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").warning('%s - "WebSocket %s" %d', "127.0.0.1:1", "/ws?secret", 403)
    logging.getLogger("uvicorn.access").info("GET / 200")
    (line,) = lines(log)

    assert (line["logger"], line["event"]) == ("uvicorn.error", "Invalid HTTP request received.")


def test_the_urls_of_outgoing_requests_are_not_logged(log: io.StringIO) -> None:
    """The URL of a webhook may contain a secret, and httpx logs every URL at the level INFO."""
    logging.getLogger("httpx").info("HTTP Request: POST %s", "http://127.0.0.1/secret")

    assert "secret" not in log.getvalue()


def test_the_configured_level_is_used(log: io.StringIO) -> None:
    configure("json", "warning", log)
    response_to(answering(), "GET", "/x")

    assert lines(log) == []


@pytest.mark.parametrize(("log_format", "is_json"), [("auto", False), ("json", True), ("console", False)])
def test_a_terminal_gets_text_and_any_other_output_json(log: io.StringIO, log_format: str, is_json: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    del log
    terminal = Terminal()
    configure(log_format, "info", terminal)
    response_to(answering(), "GET", "/x")

    assert terminal.getvalue().startswith("{") == is_json
    assert "/x" in terminal.getvalue()
