"""Chatting over HTTP: who asks again, joins, resumes, comes too late, or asks for what is another's."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.hub.process import RunningHub, running_hub
from tests.waiting import until

BUSY = "Request is being processed. Retry in a moment."
COMPLETED = "This request was already completed. Use non-streaming endpoint to get response."
REUSED = "Idempotency key already used with different request"


@dataclass(frozen=True, slots=True)
class Fifo:
    """Where the brain waits."""

    path: Path
    opened: int

    def release(self) -> None:
        """Let everybody pass, also those who are still to come."""
        os.write(self.opened, b"." * 100)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Desk:
    """A hub with the brain of these tests, and its outside world."""

    hub: RunningHub
    client: httpx.Client
    folder: Path

    def chat(self, message: str, key: str | None = None, wait: int = 0, **said: Any) -> httpx.Response:
        headers = {**({"Idempotency-Key": key} if key else {}), **({"Prefer": f"wait={wait}"} if wait else {})}
        return self.client.post("/chat", json={"message": message, **said}, headers=headers)

    def done(self, message: str, **said: Any) -> dict[str, Any]:
        answer = self.chat(message, wait=20, **said)
        assert (answer.status_code, answer.json()["status"]) == (200, "complete"), answer.text
        told: dict[str, Any] = answer.json()
        return told

    def fifo(self) -> Fifo:
        path = self.folder / f"fifo-{uuid.uuid4().hex}"
        os.mkfifo(path)
        # Open at both ends, so that nobody waits for the other one.
        return Fifo(path, os.open(path, os.O_RDWR))

    def turn(self, turn_id: str) -> dict[str, Any]:
        told: dict[str, Any] = self.client.get(f"/turns/{turn_id}").json()
        return told

    def state(self, turn_id: str) -> str:
        return str(self.turn(turn_id)["status"])

    def paid(self) -> list[str]:
        outside = self.folder / "outside"
        return outside.read_text().splitlines() if outside.exists() else []


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    env = {"OUTSIDE": str(folder / "outside"), "ONCEWARD_TURNS__API_TTL_SECONDS": "2"}
    with (
        running_hub(data_dir=folder / "data", args=("--brain", "tests.hub.chat_brain:brain"), env=env) as hub,
        httpx.Client(base_url=hub.url, timeout=30) as client,
    ):
        yield Desk(hub, client, folder)


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


def events(text: str) -> list[tuple[str, str, Any]]:
    """Id, name and data of each event; an empty id where there is none."""
    found = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def stream(desk: Desk, message: str, *, last: str = "", query: str = "", **said: Any) -> httpx.Response:
    headers = {"Last-Event-ID": last} if last else {}
    return desk.client.post(f"/chat/stream{query}", json={"message": message, **said}, headers=headers)


def test_a_message_is_answered_at_once_and_its_turn_later(desk: Desk, session: str) -> None:
    answer = desk.chat("hello", session_key=session)
    told = answer.json()

    assert (answer.status_code, set(told), told["status"]) == (200, {"status", "turn_id"}, "processing")
    until(lambda: desk.state(told["turn_id"]) == "complete", "it is not answered")
    turn = desk.turn(told["turn_id"])
    assert {
        "turn_id",
        "turn_group_id",
        "session_key",
        "status",
        "messages",
        "response",
        "superseded_by",
        "tools",
    } <= set(turn)
    assert (turn["response"], turn["session_key"], turn["superseded_by"], turn["tools"]) == (
        "answered: hello", session, None, [],
    )  # fmt: skip
    assert [one["content"] for one in turn["messages"]] == ["hello"]


def test_what_is_left_out_is_filled_in(desk: Desk) -> None:
    told = desk.done(f"hello {uuid.uuid4()}")

    assert desk.turn(told["turn_id"])["session_key"] == "local:default:local:api"


def test_a_key_is_busy_then_answered_and_never_of_another_message(desk: Desk, session: str) -> None:
    fifo, key = desk.fifo(), f"k-{session}"
    first = desk.chat(f"hold {fifo}", key, session_key=session).json()
    until(lambda: desk.state(first["turn_id"]) == "processing", "it does not run")

    busy = desk.chat(f"hold {fifo}", key, session_key=session)
    other = desk.chat("something else", key, session_key=session)
    fifo.release()
    waited = desk.chat(f"hold {fifo}", key, wait=20, session_key=session)
    again = desk.chat(f"hold {fifo}", idempotency_key=key, session_key=session)

    assert (busy.status_code, busy.json()["detail"], busy.headers["Retry-After"]) == (409, BUSY, "1")
    assert busy.headers["Content-Location"] == f"/turns/{first['turn_id']}"
    assert (other.status_code, other.json()["detail"]) == (422, REUSED)
    assert waited.json() == again.json()
    assert (again.status_code, again.json()["status"], again.json()["turn_id"]) == (200, "complete", first["turn_id"])
    assert [one["content"] for one in again.json()["messages"]] == [f"hold {fifo}"]


def test_the_header_counts_more_than_the_field(desk: Desk, session: str) -> None:
    one = desk.done("hello", session_key=session, idempotency_key=f"a-{session}")
    by_header = desk.chat("hello", f"b-{session}", session_key=session, idempotency_key=f"a-{session}", wait=20)

    assert by_header.json()["turn_id"] != one["turn_id"]


def test_a_key_is_free_some_time_after_its_turn_is_complete(desk: Desk, session: str) -> None:
    one = desk.chat("first", f"k-{session}", wait=20, session_key=session).json()

    def taken() -> dict[str, Any] | None:
        answer = desk.chat("second", f"k-{session}", session_key=session)
        return answer.json() if answer.status_code == 200 else None

    assert until(taken, "the key is never free")["turn_id"] != one["turn_id"]


def test_the_same_words_without_a_key_are_found_to_be_the_same(desk: Desk, session: str) -> None:
    one = desk.done("hello", session_key=session)
    again = desk.chat("hello", session_key=session)
    other_session = desk.done("hello", session_key=f"{session}-2")
    with_id = desk.done("hello", session_key=session, message_id="m1")

    assert (again.status_code, again.json()["duplicate_of"]) == (200, one["turn_id"])
    assert again.json()["response"] == one["response"]
    assert len({one["turn_id"], other_session["turn_id"], with_id["turn_id"]}) == 3


def test_a_message_id_is_a_duplicate_whatever_the_key(desk: Desk, session: str) -> None:
    one = desk.done("hello", session_key=session, message_id="m1")
    again = desk.chat("hello", session_key=session, message_id="m1").json()
    keyed = desk.chat("hello", f"k-{session}", session_key=session, message_id="m1")

    assert again["duplicate_of"] == one["turn_id"]
    assert keyed.json()["turn_id"] == one["turn_id"]
    assert len(desk.turn(one["turn_id"])["messages"]) == 1


def test_a_later_message_supersedes_and_the_first_key_answers_with_the_turn_that_took_over(
    desk: Desk, session: str
) -> None:
    fifo, key = desk.fifo(), f"k-{session}"
    first = desk.chat(f"hold {fifo}", key, session_key=session).json()
    until(lambda: desk.state(first["turn_id"]) == "processing", "it does not run")
    waiting: list[httpx.Response] = []
    waiter = threading.Thread(
        target=lambda: waiting.append(desk.chat(f"hold {fifo}", key, wait=20, session_key=session))
    )
    waiter.start()

    second = desk.chat("and this", session_key=session).json()
    fifo.release()
    waiter.join()

    old = desk.turn(first["turn_id"])
    assert (old["status"], old["superseded_by"]) == ("superseded", second["turn_id"])
    assert waiting[0].json()["turn_id"] == second["turn_id"]
    assert waiting[0].json()["status"] == "complete"
    new = desk.turn(second["turn_id"])
    assert new["turn_group_id"] == old["turn_group_id"]
    assert [one["content"] for one in new["messages"]] == [f"hold {fifo}", "and this"]


def test_a_turn_that_has_paid_is_not_superseded_and_pays_once(desk: Desk, session: str) -> None:
    fifo, order = desk.fifo(), f"order-{session}"
    first = desk.chat(f"keep {order} {fifo}", session_key=session).json()
    until(
        lambda: order in (desk.folder / "begun").read_text() if (desk.folder / "begun").exists() else False, "no call"
    )

    second = desk.chat("and this", session_key=session).json()
    fifo.release()
    done = desk.client.post(
        "/chat", json={"message": "and this", "session_key": session}, headers={"Prefer": "wait=20"}
    ).json()

    assert desk.state(first["turn_id"]) == "complete"
    assert desk.turn(second["turn_id"])["turn_group_id"] != desk.turn(first["turn_id"])["turn_group_id"]
    assert (done["turn_id"], done["duplicate_of"]) == (second["turn_id"], second["turn_id"])
    assert desk.paid().count(order) == 1
    (call,) = desk.turn(first["turn_id"])["tools"]
    assert (call["tool"], call["effect"], call["status"]) == ("keep", "irreversible", "done")
    assert call["key"].startswith(f"keep:order:{order}:turn_group:")


def test_a_failed_turn_frees_its_key_and_the_retry_keeps_the_group(desk: Desk, session: str) -> None:
    broken = desk.folder / "broken"
    broken.touch()
    first = desk.chat("fail", f"k-{session}", wait=30, session_key=session).json()
    broken.unlink()

    second = desk.chat("fail", f"k-{session}", wait=20, session_key=session).json()

    assert (first["status"], first["error"]) == ("failed", "RuntimeError: told to fail")
    assert (second["status"], second["response"]) == ("complete", "answered: fail")
    groups = {desk.turn(one["turn_id"])["turn_group_id"] for one in (first, second)}
    assert (len(groups), first["turn_id"] != second["turn_id"]) == (1, True)


def test_a_stream_says_what_is_said_and_ends_with_what_chat_answers(desk: Desk, session: str) -> None:
    order = f"order-{session}"
    answer = stream(desk, f"say one\nrefund {order}\nsay two", session_key=session)
    told = events(answer.text)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [name for _, name, _ in told] == ["delta", "tool", "delta", "done"]
    assert [number for number, _, _ in told] == ["1.1", "1.2", "1.3", "1.4"]
    assert [told[0][2]["text"], told[2][2]["text"]] == ["one", "two"]
    assert told[1][2]["tool"] == "refund"
    assert (
        told[3][2] == desk.chat(f"say one\nrefund {order}\nsay two", session_key=session).json() | {}
        or told[3][2]["status"] == "complete"
    )
    assert events(desk.client.get(f"/turns/{told[3][2]['turn_id']}/events").text) == told


def test_a_finished_stream_is_refused_unless_it_is_asked_for(desk: Desk, session: str) -> None:
    said: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    first = events(stream(desk, "say one\nsay two", **said).text)

    refused = stream(desk, "say one\nsay two", **said)
    replayed = stream(desk, "say one\nsay two", query="?replay=1", **said)
    resumed = stream(desk, "say one\nsay two", last="1.1", **said)
    other = stream(desk, "something else", **said)

    assert (refused.status_code, refused.json()["detail"]) == (409, COMPLETED)
    assert events(replayed.text) == first
    assert events(resumed.text) == first[1:]
    assert (other.status_code, other.json()["detail"]) == (422, REUSED)
    assert desk.chat("say one\nsay two", **said).json() == first[-1][2]


def test_who_asks_while_it_runs_joins_from_the_beginning(desk: Desk, session: str) -> None:
    fifo = desk.fifo()
    said: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    message = f"say one\nhold {fifo}\nsay two"
    turn_id = desk.chat(message, **said).json()["turn_id"]
    asked = {"message": message, **said}
    with (
        desk.client.stream("POST", "/chat/stream", json=asked) as from_the_beginning,
        desk.client.stream("POST", "/chat/stream", json=asked, headers={"Last-Event-ID": "1.1"}) as from_the_second,
    ):
        fifo.release()  # both have joined: their answers have begun
        heard = [events(one.read().decode()) for one in (from_the_beginning, from_the_second)]

    whole = events(desk.client.get(f"/turns/{turn_id}/events").text)
    assert heard == [whole, whole[1:]]


def test_a_stream_of_a_superseded_turn_is_not_gone_on_with_in_the_turn_that_took_its_place(
    desk: Desk, session: str
) -> None:
    fifo = desk.fifo()
    said: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    message = f"say old\nhold {fifo}"
    first = desk.chat(message, **said).json()
    until(lambda: desk.state(first["turn_id"]) == "processing", "it does not run")
    second = desk.chat("say new", session_key=session).json()
    fifo.release()

    resumed = stream(desk, message, last="1.1", **said)

    assert resumed.headers["content-location"] == f"/turns/{second['turn_id']}/events"
    assert [name for _, name, _ in events(resumed.text)] == ["interrupted", "delta", "delta", "done"]


def test_who_listens_to_a_turn_that_is_superseded_hears_which_one_took_its_place(desk: Desk, session: str) -> None:
    fifo = desk.fifo()
    first = desk.chat(f"say old\nhold {fifo}", session_key=session).json()
    path = f"/turns/{first['turn_id']}/events"
    text = ""
    second: dict[str, Any] = {}
    with desk.client.stream("GET", path) as live:
        for part in live.iter_text():
            text += part
            if "event: delta" in text and not second:
                second = desk.chat("say new", session_key=session).json()
    fifo.release()

    told = events(text)
    assert [name for _, name, _ in told] == ["delta", "superseded"]
    assert told[-1][2] == {"turn_id": first["turn_id"], "superseded_by": second["turn_id"]}
    assert events(desk.client.get(path).text) == told[-1:]


def test_an_id_of_an_earlier_attempt_is_interrupted_and_the_new_stream_follows(desk: Desk, session: str) -> None:
    told = desk.done("say one", session_key=session)
    path = f"/turns/{told['turn_id']}/events"
    whole = events(desk.client.get(path).text)

    for last in ("0.7", "9.1"):
        answer = desk.client.get(path, headers={"Last-Event-ID": last})

        assert events(answer.text)[0] == (last, "interrupted", {"turn_id": told["turn_id"]})
        assert events(answer.text)[1:] == whole


@pytest.mark.parametrize("last", ["1.2", "1.3", "1.99"])
def test_who_has_come_to_the_end_gets_the_last_event_under_its_own_id(desk: Desk, session: str, last: str) -> None:
    told = desk.done("say one\nsay two", session_key=session)
    path = f"/turns/{told['turn_id']}/events"

    answer = desk.client.get(path, headers={"Last-Event-ID": last})

    assert events(answer.text) == [("1.3", "done", told)]


def test_a_new_message_is_followed_from_its_beginning_whatever_was_heard_before(desk: Desk, session: str) -> None:
    for last in ("1.2", "7.1"):
        told = events(stream(desk, f"say one\nsay {last}", last=last, session_key=session).text)

        assert [(number, name) for number, name, _ in told] == [("1.1", "delta"), ("1.2", "delta"), ("1.3", "done")]


def test_a_message_that_is_tried_again_begins_anew_for_who_heard_it_fail(desk: Desk, session: str) -> None:
    broken = desk.folder / "broken"
    broken.touch()
    said: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    failed = desk.chat("say one\nfail", wait=30, **said).json()
    broken.unlink()

    told = events(stream(desk, "say one\nfail", last="1.1", **said).text)

    assert failed["status"] == "failed"
    assert [name for _, name, _ in told] == ["interrupted", "delta", "done"]


def _received(desk: Desk) -> int:
    """How many messages are stored."""
    with contextlib.closing(sqlite3.connect(desk.folder / "data" / "hub.db")) as database:
        return int(database.execute("SELECT count(*) FROM turn_messages").fetchone()[0])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "message"),
        ({"message": ""}, "message"),
        ({"message": 7}, "message"),
        ({"message": "x", "tenant_id": "a b"}, "tenant_id"),
        ({"message": "x", "tenant_id": "a" * 65}, "tenant_id"),
        ({"message": "x", "colour": "red"}, "colour"),
        ({"message": "x", "metadata": []}, "metadata"),
        ({"message": "x", "session_key": "s" * 600}, "session_key"),
        *(
            ({"message": "x", name: blank}, name)
            for name in ("tenant_id", "customer_id", "agent_id", "channel", "message_id", "session_key")
            for blank in ("", " ")
        ),
    ],
)
@pytest.mark.parametrize("path", ["/chat", "/chat/stream"])
def test_what_makes_no_sense_is_refused(desk: Desk, path: str, body: dict[str, Any], field: str) -> None:
    stored = _received(desk)

    answer = desk.client.post(path, json=body)

    assert answer.status_code == 400, answer.text
    assert any(field in one["field"] for one in answer.json()["errors"]), answer.json()
    assert _received(desk) == stored


def test_what_is_null_is_filled_in_as_what_is_left_out(desk: Desk) -> None:
    names = ("tenant_id", "customer_id", "agent_id", "channel", "message_id", "session_key", "idempotency_key")
    told = desk.done(f"hello {uuid.uuid4()}", metadata=None, **dict.fromkeys(names))

    assert desk.turn(told["turn_id"])["session_key"] == "local:default:local:api"


def test_a_key_or_an_id_that_makes_no_sense_is_refused(desk: Desk, session: str) -> None:
    for field, headers, said in (
        ("idempotency_key", {}, {"idempotency_key": "ü"}),
        ("idempotency_key", {}, {"idempotency_key": ""}),
        ("Idempotency-Key", {"Idempotency-Key": '"a'}, {"idempotency_key": "b"}),
        ("Idempotency-Key", {"Idempotency-Key": "a", "X-Idempotency-Key": "b"}, {}),
        ("X-Idempotency-Key", {"X-Idempotency-Key": "a b"}, {}),
    ):
        for path in ("/chat", "/chat/stream"):
            refused = desk.client.post(path, json={"message": "x", "session_key": session, **said}, headers=headers)
            assert (refused.status_code, [one["field"] for one in refused.json()["errors"]]) == (400, [field])
    assert stream(desk, "x", last="seven", session_key=session).status_code == 400
    assert desk.client.get("/turns/nobody").status_code == 404
    assert desk.client.get("/turns/nobody/events").status_code == 404


def test_the_checks_of_beats_and_tools_are_counted(desk: Desk, session: str) -> None:
    desk.done(f"refund order-{session}", session_key=session)
    counted = desk.client.get("/metrics").text

    for kind in ("client_provided", "auto_generated", "beat_based", "tool_based"):
        (line,) = [
            one for one in counted.splitlines() if one.startswith(f'idempotency_key_type_total{{type="{kind}"}}')
        ]
        assert float(line.split()[-1]) > 0 or kind == "client_provided"
