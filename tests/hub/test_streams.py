"""Which requests are ended with their token, how each of them ends, and that many are checked with one statement."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy
from tests.hub.asking import Answered, Headers, ask, request, websocket

from onceward.db.engine import Database
from onceward.http.problem import Answer
from onceward.http.wire import Receive, Send
from onceward.hub import tokens
from onceward.hub.auth import LOCAL, Principal, Visitor, judged_again
from onceward.hub.streams import OpenStreams, Streams

KEY: Headers = ((b"idempotency-key", b"k"),)
WAIT: Headers = ((b"prefer", b"wait=30"),)
VISITOR = Visitor("ow_…", from_here=True, needed="read")
STATE = {"principal": LOCAL, "visitor": VISITOR}


def dismissed(scope: dict[str, Any], *sent: dict[str, Any], always_waits: bool = False) -> Answered | None:
    """What a handler that sends this, and then waits for ever, ends with; None when its visitor has nothing open."""
    streams = OpenStreams(1)

    async def handler(_scope: Any, _receive: Receive, send: Send) -> None:
        for message in sent:
            await send(message)
        if not streams.visitors:
            raise LookupError
        for _ in range(3):
            streams.dismiss(VISITOR)
        await asyncio.Event().wait()

    try:
        return ask(Streams(handler, streams, always_waits=always_waits), {**scope, "state": STATE})
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
def test_a_request_that_has_not_been_answered_gets_401(method: str, path: str, headers: Headers) -> None:
    answered = dismissed(request(method, path, headers))

    assert answered is not None
    assert (answered.status, answered.code) == (401, "unauthorized")
    assert answered.headers["www-authenticate"] == "Bearer"


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
def test_work_that_waits_for_nobody_is_left_to_its_end(method: str, path: str, headers: Headers) -> None:
    assert dismissed(request(method, path, headers)) is None


def test_with_a_configured_wait_every_request_with_a_key_waits() -> None:
    assert dismissed(request("POST", "/x", KEY), always_waits=True) is not None
    assert dismissed(request("POST", "/x"), always_waits=True) is None


def test_a_stream_that_has_begun_ends_whole() -> None:
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    answered = dismissed(request("GET", "/turns/t/events"), head)

    assert answered is not None
    assert answered.messages[1:] == [{"type": "http.response.body", "body": b": unauthorized\n\n", "more_body": False}]


def test_a_socket_that_has_not_said_hello_is_closed() -> None:
    answered = dismissed(websocket("/ws"), {"type": "websocket.accept"})

    assert answered is not None
    assert answered.messages[-1] == {"type": "websocket.close", "code": 4401, "reason": ""}


def test_a_timeout_of_the_handler_is_its_own() -> None:
    async def handler(_scope: Any, _receive: Receive, _send: Send) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        ask(Streams(handler, OpenStreams(1)), request("POST", "/chat/stream", state=STATE))


def test_a_place_is_free_again_however_its_stream_ends() -> None:
    streams = OpenStreams(1)

    async def fails(_scope: Any, _receive: Receive, _send: Send) -> None:
        raise ValueError("a bug")

    for _ in range(3):
        with pytest.raises(ValueError, match="a bug"):
            ask(Streams(fails, streams), request("POST", "/chat/stream", state=STATE))
    assert streams.enter(LOCAL.name)
    assert not streams.enter(LOCAL.name)
    assert ask(Streams(fails, streams), request("POST", "/chat/stream", state=STATE)).status == 429


def test_many_visitors_are_checked_with_one_statement(database: Database) -> None:
    with database.write() as tx:
        texts = {name: tokens.create(tx, name, ["read"])[1] for name in ("a", "b", "gone")}
        tokens.revoke(tx, "gone")
    sent = [*texts.values(), None, "nonsense", "ow_000000000000_" + "a" * 43]
    visitors = [Visitor(text, from_here=True, needed=needed) for text in sent for needed in ("read", "write")]
    statements: list[str] = []
    sqlalchemy.event.listen(database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    found = asyncio.run(judged_again(database, visitors))

    said = [one.name if isinstance(one, Principal) else one.status for one in (found[visitor] for visitor in visitors)]
    assert said == ["a", 403, "b", 403, *[401] * 8]
    assert sum("tokens" in statement for statement in statements) == 1
    assert "BEGIN IMMEDIATE" not in statements, "a check must not keep writers waiting"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_while_the_database_does_not_answer_nobody_is_refused(database: Database) -> None:
    visitor = Visitor(None, from_here=True, needed="read")
    with database.write() as tx:
        tx.exec_driver_sql("ALTER TABLE tokens RENAME TO away")
    found = asyncio.run(judged_again(database, [visitor]))[visitor]

    assert isinstance(found, Answer)
    assert found.status == 503
