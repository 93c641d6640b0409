"""Which requests end with their token, how each of them ends, and that one statement checks many of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy
from tests.hub.asgi_client import AsgiResponse, Headers, request, send_request, websocket

from onceward.http.asgi_types import Receive, Send
from onceward.http.problem import Response
from onceward.hub.db.engine import Database
from onceward.hub.db.tables import tokens as table
from onceward.hub.security import tokens
from onceward.hub.security.auth import LOCAL, Credentials, Principal, authenticate_all
from onceward.hub.security.streams import OpenStreams, StreamsMiddleware

KEY: Headers = ((b"idempotency-key", b"k"),)
WAIT: Headers = ((b"prefer", b"wait=30"),)
CREDENTIALS = Credentials("ow_…", is_local=True, needed="read")
STATE = {"principal": LOCAL, "credentials": CREDENTIALS}


def dismissed(scope: dict[str, Any], *sent: dict[str, Any], always_waits: bool = False) -> AsgiResponse | None:
    """Return the forced end of a handler that sends this and then waits forever; None if no stream is open."""
    streams = OpenStreams(1)

    async def handler(_scope: Any, _receive: Receive, send: Send) -> None:
        for message in sent:
            await send(message)
        if not streams.credentials:
            raise LookupError
        for _ in range(3):
            streams.dismiss(CREDENTIALS)
        await asyncio.Event().wait()

    try:
        return send_request(StreamsMiddleware(handler, streams, always_waits=always_waits), {**scope, "state": STATE})
    except LookupError:
        return None


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/chat", WAIT),
        ("POST", "/chat", (*KEY, *WAIT)),
        ("POST", "/api/v1/topics", (*KEY, *WAIT)),
        ("PUT", "/api/v1/topics/a/attachments", ((b"x-idempotency-key", b"k"), *WAIT)),
        ("POST", "/chat/stream", ()),
        ("GET", "/turns/t/events", ()),
        ("GET", "/api/v1/events/stream", ()),
    ],
)
def test_a_waiting_request_gets_401(method: str, path: str, headers: Headers) -> None:
    response = dismissed(request(method, path, headers))

    assert response is not None
    assert (response.status, response.code) == (401, "unauthorized")
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/chat", ()),
        ("POST", "/chat", ((b"prefer", b"wait=0"),)),
        ("POST", "/api/v1/topics", WAIT),
        ("POST", "/api/v1/topics", KEY),
        ("GET", "/api/v1/topics", WAIT),
        ("GET", "/turns/t", ()),
    ],
)
def test_a_request_that_does_not_wait_runs_to_its_end(method: str, path: str, headers: Headers) -> None:
    assert dismissed(request(method, path, headers)) is None


def test_with_a_configured_wait_every_request_with_a_key_waits() -> None:
    assert dismissed(request("POST", "/x", KEY), always_waits=True) is not None
    assert dismissed(request("POST", "/x"), always_waits=True) is None


def test_a_stream_that_has_begun_ends_cleanly() -> None:
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    response = dismissed(request("GET", "/turns/t/events"), head)

    assert response is not None
    assert response.messages[1:] == [{"type": "http.response.body", "body": b": unauthorized\n\n", "more_body": False}]


def test_a_websocket_before_its_hello_is_closed() -> None:
    response = dismissed(websocket("/ws"), {"type": "websocket.accept"})

    assert response is not None
    assert response.messages[-1] == {"type": "websocket.close", "code": 4401, "reason": ""}


def test_a_timeout_inside_the_handler_is_left_to_it() -> None:
    async def handler(_scope: Any, _receive: Receive, _send: Send) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        send_request(StreamsMiddleware(handler, OpenStreams(1)), request("POST", "/chat/stream", state=STATE))


def test_a_slot_is_free_again_however_its_stream_ends() -> None:
    streams = OpenStreams(1)

    async def fails(_scope: Any, _receive: Receive, _send: Send) -> None:
        raise ValueError("a bug")

    for _ in range(3):
        with pytest.raises(ValueError, match="a bug"):
            send_request(StreamsMiddleware(fails, streams), request("POST", "/chat/stream", state=STATE))
    assert streams.enter(LOCAL.name)
    assert not streams.enter(LOCAL.name)
    assert send_request(StreamsMiddleware(fails, streams), request("POST", "/chat/stream", state=STATE)).status == 429


def test_many_open_streams_are_checked_with_one_statement(database: Database) -> None:
    with database.write() as tx:
        texts = {name: tokens.create(tx, name, ["read"])[1] for name in ("a", "b", "gone", "expired")}
        tokens.revoke(tx, "gone")
        tx.execute(sqlalchemy.update(table).where(table.c.name == "expired").values(expires_at="2026-01-01T00:00:00Z"))
    sent = [*texts.values(), None, "nonsense", "ow_000000000000_" + "a" * 43]
    sent_credentials = [
        Credentials(text, is_local=True, needed=needed) for text in sent for needed in ("read", "write")
    ]
    statements: list[str] = []
    sqlalchemy.event.listen(database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    found = asyncio.run(authenticate_all(database, sent_credentials))

    names_and_statuses = [
        one.name if isinstance(one, Principal) else one.status
        for one in (found[credentials] for credentials in sent_credentials)
    ]
    assert names_and_statuses == ["a", 403, "b", 403, *[401] * 10]
    assert sum("tokens" in statement for statement in statements) == 1
    assert "BEGIN IMMEDIATE" not in statements, "a check must not keep writers waiting"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_while_the_database_is_down_no_stream_is_refused(database: Database) -> None:
    credentials = Credentials(None, is_local=True, needed="read")
    with database.write() as tx:
        tx.exec_driver_sql("ALTER TABLE tokens RENAME TO away")
    found = asyncio.run(authenticate_all(database, [credentials]))[credentials]

    assert isinstance(found, Response)
    assert found.status == 503
