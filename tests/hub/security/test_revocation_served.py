"""A running hub ends every stream and waiting request within two seconds of its token, and no other."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import httpx
import pytest
from sqlalchemy import text
from tests.hub.chat_hub import ChatHub, open_chat_hub
from tests.waiting import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from onceward.hub.db.engine import Database, open_database
from onceward.hub.security import tokens

SECONDS = 30.0
END_SECONDS_MAX = 2.0


@pytest.fixture(scope="module")
def chat_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatHub]:
    env = {"ONCEWARD_HUB__MAX_STREAMS_PER_PRINCIPAL": "4"}
    with open_chat_hub(tmp_path_factory.mktemp("chat_hub"), env) as chat_hub:
        yield chat_hub


@pytest.fixture(scope="module")
def database(chat_hub: ChatHub) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{chat_hub.folder}/data/hub.db")) as database:
        yield database


def make(database: Database, name: str) -> dict[str, str]:
    with database.write() as tx:
        return {"Authorization": f"Bearer {tokens.create(tx, name, ['read', 'write'])[1]}"}


def revoke(database: Database, name: str) -> None:
    with database.write() as tx:
        assert tokens.revoke(tx, name) == 1


class Stream:
    """A response that is read in a thread, and the time of its end."""

    def __init__(self, chat_hub: ChatHub, method: str, path: str, headers: dict[str, str], body: object = None) -> None:
        self.begun, self.text, self.status = threading.Event(), "", 0
        self.ended_at: float | None = None
        self._arguments = (f"{chat_hub.hub.url}{path}", method, headers, body)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        url, method, headers, body = self._arguments
        with httpx.stream(method, url, headers=headers, json=body, timeout=SECONDS) as response:
            self.status = response.status_code
            self.begun.set()
            for piece in response.iter_text():
                self.text += piece
        self.ended_at = time.monotonic()

    def join(self) -> float:
        self._thread.join(SECONDS)
        assert self.ended_at is not None, "it did not end"
        return self.ended_at


def ended(one: Connection) -> float:
    with contextlib.suppress(ConnectionClosed):
        while True:
            one.recv(SECONDS)
    assert one.close_code == 4401
    return time.monotonic()


def test_all_open_streams_of_a_token_end_within_two_seconds_and_no_others(
    chat_hub: ChatHub, database: Database
) -> None:
    gone, other = make(database, "gone"), make(database, "other")
    fifo = chat_hub.fifo()
    message = f"say one\nhold {fifo}\nsay two"
    url = f"ws{chat_hub.hub.url.removeprefix('http')}/ws"
    with ExitStack() as stack:
        chat = Stream(chat_hub, "POST", "/chat/stream", gone, {"message": message, "session_key": "a"})
        until(lambda: "event: delta" in chat.text)
        path = _events_of(chat_hub, gone, message)
        followed = Stream(chat_hub, "GET", path, gone)
        theirs = Stream(chat_hub, "POST", "/chat/stream", other, {"message": message, "session_key": "b"})
        waiting = Stream(chat_hub, "POST", "/chat", {**gone, "Prefer": "wait=30"}, {"message": f"hold {fifo}"})
        silent = stack.enter_context(connect(url, additional_headers=gone))
        socket = stack.enter_context(connect(url, additional_headers=gone))
        socket.send('{"type":"hello"}')
        assert json.loads(socket.recv(SECONDS))["type"] == "hello_ok"
        until(lambda: "event: delta" in followed.text and "event: delta" in theirs.text)
        until(lambda: "onceward_streams 5.0" in metrics(chat_hub, other))
        until(lambda: stored(database, f"hold {fifo}"))
        revoke(database, "gone")
        began = time.monotonic()
        took = [
            ended(socket) - began,
            ended(silent) - began,
            *(one.join() - began for one in (chat, followed, waiting)),
        ]
        still = theirs.ended_at
        fifo.release()
        theirs.join()

    assert max(took) < END_SECONDS_MAX, took
    assert chat.text.endswith(": unauthorized\n\n")
    assert followed.text.endswith(": unauthorized\n\n")
    assert "two" not in chat.text
    assert (waiting.status, json.loads(waiting.text)["code"]) == (401, "unauthorized")
    assert still is None
    assert "event: done" in theirs.text
    assert not any('"level": "error"' in line for line in chat_hub.hub.log_lines())


def _events_of(chat_hub: ChatHub, headers: dict[str, str], message: str) -> str:
    """Return the path of the stream of the turn with this message."""
    body = {"message": message, "session_key": "a"}
    with httpx.stream(
        "POST", f"{chat_hub.hub.url}/chat/stream", json=body, headers=headers, timeout=SECONDS
    ) as response:
        return response.headers["Content-Location"]


def metrics(chat_hub: ChatHub, headers: dict[str, str]) -> str:
    return httpx.get(f"{chat_hub.hub.url}/metrics", headers=headers).text


def stored(database: Database, content: str) -> bool:
    with database.read() as tx:
        return bool(
            tx.execute(text("SELECT 1 FROM turn_messages WHERE content = :content"), {"content": content}).all()
        )


def test_above_the_stream_limit_a_principal_gets_429_and_nothing_is_stored(
    chat_hub: ChatHub, database: Database
) -> None:
    many, other = make(database, "many"), make(database, "another")
    url = f"ws{chat_hub.hub.url.removeprefix('http')}/ws"

    def refused(path: str, body: object = None) -> tuple[int, str, bool]:
        method = "GET" if body is None else "POST"
        answer = httpx.request(method, f"{chat_hub.hub.url}{path}", headers=many, json=body)
        return answer.status_code, answer.json()["code"], "Retry-After" in answer.headers

    with ExitStack() as stack:
        first = [stack.enter_context(connect(url, additional_headers=many)) for _ in range(4)]
        for one in first:
            one.send('{"type":"hello"}')  # without it, the hub closes the connection after some seconds
        refusals = [
            refused("/api/v1/events/stream"),
            refused("/turns/none/events"),
            refused("/chat/stream", {"message": "too many", "session_key": "too-many"}),
        ]
        with pytest.raises(InvalidStatus) as caught, connect(url, additional_headers=many):
            pass
        rotated = make(database, "many")
        same = httpx.get(f"{chat_hub.hub.url}/api/v1/events/stream", headers=rotated).status_code
        stack.enter_context(connect(url, additional_headers=other))
        counted = metrics(chat_hub, other)
        first[0].close()
        until(lambda: _opens(url, many), "there is a place again")

    assert refusals == [(429, "tooManyRequests", True)] * 3
    assert caught.value.response.status_code == 429
    assert same == 429, "tokens of one name are one principal"
    assert 'onceward_refusals_total{reason="too_many_streams"} 5.0' in counted
    assert not stored(database, "too many")


def _opens(url: str, headers: dict[str, str]) -> bool:
    try:
        with connect(url, additional_headers=headers):
            return True
    except InvalidStatus:
        return False
