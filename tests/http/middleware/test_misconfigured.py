"""A store that only an operator can repair: found when the application starts, 500 and not 503, the cause in the log."""

from __future__ import annotations

import asyncio
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.http.asgi_server import run, send_request
from tests.servers.postgres import PostgresServer

from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from onceward.http.asgi_types import Message, Receive, Send
from onceward.store import failure_log


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the causes that earlier tests logged: each cause is logged once."""
    log = failure_log.FailureLog()
    for name in ("onceward.http.problem", "onceward.http.keyed.admission"):
        monkeypatch.setattr(sys.modules[name], "report", log.report)


class App:
    """An application that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        self.calls.append(scope["type"])
        if scope["type"] == "lifespan":
            assert (await receive())["type"] == "lifespan.startup"
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            await send({"type": "lifespan.shutdown.complete"})


def lifespan(app: IdempotencyMiddleware) -> list[Message]:
    """Start and stop the application, and return the messages to the server."""
    sent: list[Message] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(_call(app, {"type": "lifespan"}, receive, send))
    return sent


async def _call(app: IdempotencyMiddleware, scope: dict[str, Any], receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


def assert_misconfigured(status: int, headers: dict[str, str], body: bytes) -> None:
    assert status == 500
    assert "retry-after" not in headers
    assert b'"code": "internal"' in body
    assert b"misconfigured" in body
    assert b"no_such_database" not in body, "the cause is for the operator"


def test_a_wrong_url_keeps_an_asgi_application_from_starting_and_is_in_the_log(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()

    (sent,) = lifespan(IdempotencyMiddleware(app, store=postgres_server.url("no_such_database")))

    assert sent["type"] == "lifespan.startup.failed"
    assert 'database "no_such_database" does not exist' in sent["message"]
    assert app.calls == []
    (line,) = [one for one in caplog.records if one.getMessage().startswith("store_misconfigured")]
    assert 'database "no_such_database" does not exist' in line.getMessage()


def test_a_missing_folder_keeps_an_application_from_starting(tmp_path: Path) -> None:
    (sent,) = lifespan(IdempotencyMiddleware(App(), store=f"sqlite:///{tmp_path}/none/keys.db"))

    assert sent["type"] == "lifespan.startup.failed"
    assert "create it first" in sent["message"]


def test_an_application_starts_although_its_store_is_down_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()

    sent = lifespan(IdempotencyMiddleware(app, store="postgresql://postgres@127.0.0.1:9/none"))

    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    (line,) = [one for one in caplog.records if one.getMessage().startswith("store_unavailable")]
    assert "onnection refused" in line.getMessage()


def test_a_middleware_that_is_switched_off_does_not_check_its_store() -> None:
    app = App()

    lifespan(IdempotencyMiddleware(app, store="postgresql://postgres@127.0.0.1:9/none", enabled=False))

    assert app.calls == ["lifespan"]


def test_a_keyed_request_gets_500_without_retry_after_and_one_line_in_the_log(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App()
    guarded = IdempotencyMiddleware(app, store=postgres_server.url("no_such_database"))

    answers = [run(send_request(guarded)) for _ in range(3)]

    for got in answers:
        assert_misconfigured(got.status, got.headers, got.body)
    assert app.calls == []
    assert len([one for one in caplog.records if one.getMessage().startswith("store_misconfigured")]) == 1


def test_a_keyed_wsgi_request_gets_500_without_retry_after_and_one_line_in_the_log(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[object] = []
    guarded = WSGIIdempotencyMiddleware(lambda *_: ran.append(1) or [], store=postgres_server.url("no_such_database"))  # type: ignore[func-returns-value]
    started: list[Any] = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/",
        "HTTP_IDEMPOTENCY_KEY": "once",
        "CONTENT_LENGTH": "0",
        "wsgi.input": io.BytesIO(),
    }

    body = b"".join(guarded(environ, lambda *start: started.append(start)))

    ((status, headers),) = started
    assert_misconfigured(int(status.split(" ")[0]), {name.lower(): value for name, value in headers}, body)
    assert ran == []
    assert any("does not exist" in one.getMessage() for one in caplog.records)
