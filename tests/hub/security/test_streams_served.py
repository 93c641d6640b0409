"""Streams of a running hub end with the token that opened them, although no request is sent on them; invalid requests
are answered too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
from tests.hub.hub_process import RunningHub, running_hub
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.connection import Connection
from websockets.typing import Subprotocol

from onceward.errors import Unauthorized
from onceward.hub.client import BlockingHub
from onceward.hub.config.config import HubSettings
from onceward.hub.db.engine import Database, open_database
from onceward.hub.security import tokens

SECONDS_MAX = 30.0


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningHub, Database]]:
    folder = tmp_path_factory.mktemp("revoked") / "data"
    with running_hub(data_dir=folder) as hub, closing(open_database(f"sqlite:///{folder}/hub.db")) as database:
        yield hub, database


def make_token(database: Database, *scopes: str) -> tuple[str, str]:
    with database.write() as tx:
        token, text = tokens.create(tx, "follower", scopes)
    return token.token_id, text


def revoke(database: Database, token: str) -> None:
    with database.write() as tx:
        assert tokens.revoke(tx, token) >= 1


def open_local(database: Database) -> None:
    with database.write() as tx:
        tokens.open_local(tx)


@contextmanager
def following(hub: RunningHub, token: str | None, *, as_page: bool = False) -> Iterator[Connection]:
    options: dict[str, Any] = {}
    if token is not None and as_page:
        options["subprotocols"] = [Subprotocol("onceward"), Subprotocol(f"onceward.bearer.{token}")]
    elif token is not None:
        options["additional_headers"] = {"Authorization": f"Bearer {token}"}
    with connect(f"ws{hub.url.removeprefix('http')}/ws", **options) as one:
        one.send(json.dumps({"type": "hello"}))
        assert json.loads(one.recv(SECONDS_MAX))["type"] == "hello_ok"
        assert json.loads(one.recv(SECONDS_MAX))["type"] == "caught_up"
        yield one


def ended(one: Connection) -> tuple[str, int | None]:
    """Return the code of its last frame, and of its close."""
    body = json.loads(one.recv(SECONDS_MAX))
    with pytest.raises(ConnectionClosed):
        one.recv(SECONDS_MAX)
    assert one.close_reason == f"resume after {body['after_event_id']}"
    return body["code"], one.close_code


def test_a_stream_ends_soon_after_its_token_is_revoked_and_no_other_does(hub: tuple[RunningHub, Database]) -> None:
    running, database = hub
    first, first_text = make_token(database, "read")
    second, second_text = make_token(database, "read", "write")
    with (
        following(running, first_text) as service,
        following(running, first_text, as_page=True) as page,
        following(running, second_text) as other,
        httpx.Client(base_url=running.url, timeout=SECONDS_MAX) as client,
        client.stream("GET", "/api/v1/events/stream", headers={"Authorization": f"Bearer {first_text}"}) as stream,
    ):
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event: caught_up"))
        revoke(database, first)
        endings = [ended(service), ended(page)]
        rest = [line for line in lines if line and not line.startswith(":")]
        made = client.post(
            "/api/v1/topics", headers={"Authorization": f"Bearer {second_text}"}, json={"title": "for the other"}
        )
        received = json.loads(other.recv(SECONDS_MAX))
    revoke(database, second)

    assert endings == [("unauthorized", 4401)] * 2
    assert "event: error" in rest
    assert json.loads(rest[-1].removeprefix("data: "))["code"] == "unauthorized"
    assert received["event"]["event_id"] == made.json()["event_id"]


def test_a_follower_without_a_token_is_ended_when_the_hub_starts_to_need_one(hub: tuple[RunningHub, Database]) -> None:
    running, database = hub
    open_local(database)
    with following(running, None) as local:
        token, _ = make_token(database, "read")
        ending = ended(local)
    revoke(database, token)

    assert ending == ("unauthorized", 4401)


def test_a_client_learns_that_its_token_was_revoked(hub: tuple[RunningHub, Database]) -> None:
    running, database = hub
    keeper, _ = make_token(database, "read")
    token, text = make_token(database, "read")
    with BlockingHub(running.url, text) as client, client.follow() as events:
        revoke(database, token)
        with pytest.raises(Unauthorized, match="revoked"):
            next(events)
    revoke(database, keeper)


def test_a_websocket_message_over_the_body_limit_closes_the_socket_unread(hub: tuple[RunningHub, Database]) -> None:
    open_local(hub[1])
    with following(hub[0], None) as one:
        with contextlib.suppress(ConnectionClosed):  # perhaps before all of it is sent
            one.send("x" * (HubSettings().max_body_bytes + 1))
        with pytest.raises(ConnectionClosed):
            one.recv(SECONDS_MAX)

        # The close message of the hub is lost if the connection breaks with unread data.
        assert one.close_code in (1009, 1006)


@pytest.mark.parametrize(
    "sent",
    [
        b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ],
    ids=["method", "header", "tls"],
)
def test_an_invalid_request_gets_a_problem_and_is_closed(hub: tuple[RunningHub, Database], sent: bytes) -> None:
    with closing(socket.create_connection(("127.0.0.1", hub[0].port), SECONDS_MAX)) as connection:
        connection.sendall(sent)
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = json.load(response)

        assert (response.status, body["code"]) == (400, "badRequest")
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["connection"] == "close"
        assert connection.recv(1) == b""
