"""A hub that runs: every stream and every waiting request ends within two seconds of its token, and no other does."""

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
from tests.hub.chat_desk import Desk, opened_desk
from tests.waiting import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from onceward.db.engine import Database, open_database
from onceward.hub import tokens

SECONDS = 30.0
END_SECONDS_MAX = 2.0


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    env = {"ONCEWARD_HUB__MAX_STREAMS_PER_PRINCIPAL": "4"}
    with opened_desk(tmp_path_factory.mktemp("desk"), env) as desk:
        yield desk


@pytest.fixture(scope="module")
def database(desk: Desk) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{desk.folder}/data/hub.db")) as database:
        yield database


def make(database: Database, name: str) -> dict[str, str]:
    with database.write() as tx:
        return {"Authorization": f"Bearer {tokens.create(tx, name, ['read', 'write'])[1]}"}


def revoke(database: Database, name: str) -> None:
    with database.write() as tx:
        assert tokens.revoke(tx, name) == 1


class Stream:
    """A response that is read in a thread, and when it ended."""

    def __init__(self, desk: Desk, method: str, path: str, headers: dict[str, str], said: object = None) -> None:
        self.begun, self.text, self.status = threading.Event(), "", 0
        self.ended_at: float | None = None
        self._arguments = (f"{desk.hub.url}{path}", method, headers, said)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        url, method, headers, said = self._arguments
        with httpx.stream(method, url, headers=headers, json=said, timeout=SECONDS) as response:
            self.status = response.status_code
            self.begun.set()
            for piece in response.iter_text():
                self.text += piece
        self.ended_at = time.monotonic()

    def join(self) -> float:
        self._thread.join(SECONDS)
        assert self.ended_at is not None, "it did not end"
        return self.ended_at


def ended(one: ClientConnection) -> float:
    with contextlib.suppress(ConnectionClosed):
        while True:
            one.recv(SECONDS)
    assert one.close_code == 4401
    return time.monotonic()


def test_all_that_is_open_ends_within_two_seconds_of_its_token_and_nothing_of_another(
    desk: Desk, database: Database
) -> None:
    gone, other = make(database, "gone"), make(database, "other")
    fifo = desk.fifo()
    message = f"say one\nhold {fifo}\nsay two"
    url = f"ws{desk.hub.url.removeprefix('http')}/ws"
    with ExitStack() as stack:
        chat = Stream(desk, "POST", "/chat/stream", gone, {"message": message, "session_key": "a"})
        until(lambda: "event: delta" in chat.text)
        path = _events_of(desk, gone, message)
        followed = Stream(desk, "GET", path, gone)
        theirs = Stream(desk, "POST", "/chat/stream", other, {"message": message, "session_key": "b"})
        waiting = Stream(desk, "POST", "/chat", {**gone, "Prefer": "wait=30"}, {"message": f"hold {fifo}"})
        silent = stack.enter_context(connect(url, additional_headers=gone))
        socket = stack.enter_context(connect(url, additional_headers=gone))
        socket.send('{"type":"hello"}')
        assert json.loads(socket.recv(SECONDS))["type"] == "hello_ok"
        until(lambda: "event: delta" in followed.text and "event: delta" in theirs.text)
        until(lambda: "onceward_streams 5.0" in metrics(desk, other))
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
    assert not any('"level": "error"' in line for line in desk.hub.log_lines())


def _events_of(desk: Desk, headers: dict[str, str], message: str) -> str:
    """Where the stream of the turn that has this message is."""
    said = {"message": message, "session_key": "a"}
    with httpx.stream("POST", f"{desk.hub.url}/chat/stream", json=said, headers=headers, timeout=SECONDS) as response:
        return response.headers["Content-Location"]


def metrics(desk: Desk, headers: dict[str, str]) -> str:
    return httpx.get(f"{desk.hub.url}/metrics", headers=headers).text


def stored(database: Database, content: str) -> bool:
    with database.read() as tx:
        return bool(
            tx.execute(text("SELECT 1 FROM turn_messages WHERE content = :content"), {"content": content}).all()
        )


def test_above_its_streams_a_principal_gets_429_and_nothing_is_stored(desk: Desk, database: Database) -> None:
    many, other = make(database, "many"), make(database, "another")
    url = f"ws{desk.hub.url.removeprefix('http')}/ws"

    def refused(path: str, said: object = None) -> tuple[int, str, bool]:
        method = "GET" if said is None else "POST"
        answer = httpx.request(method, f"{desk.hub.url}{path}", headers=many, json=said)
        return answer.status_code, answer.json()["code"], "Retry-After" in answer.headers

    with ExitStack() as stack:
        first = [stack.enter_context(connect(url, additional_headers=many)) for _ in range(4)]
        said = [
            refused("/api/v1/events/stream"),
            refused("/turns/none/events"),
            refused("/chat/stream", {"message": "too many", "session_key": "too-many"}),
        ]
        with pytest.raises(InvalidStatus) as caught, connect(url, additional_headers=many):
            pass
        rotated = make(database, "many")
        same = httpx.get(f"{desk.hub.url}/api/v1/events/stream", headers=rotated).status_code
        stack.enter_context(connect(url, additional_headers=other))
        counted = metrics(desk, other)
        first[0].close()
        until(lambda: _opens(url, many), "there is a place again")

    assert said == [(429, "tooManyRequests", True)] * 3
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
