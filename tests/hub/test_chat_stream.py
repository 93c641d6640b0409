"""Streams of a chat over HTTP: who joins, resumes, comes too late, or listens to a turn that is superseded."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.chat_desk import COMPLETED, REUSED, Desk, events, opened_desk, stream
from tests.waiting import until


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with opened_desk(tmp_path_factory.mktemp("desk")) as desk:
        yield desk


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


def test_a_stream_says_what_is_said_and_ends_with_what_chat_answers(desk: Desk, session: str) -> None:
    message = f"say one\nrefund order-{session}\nsay two"
    said: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    answer = stream(desk, message, **said)
    told = events(answer.text)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [name for _, name, _ in told] == ["delta", "tool", "delta", "done"]
    assert [number for number, _, _ in told] == ["1.1", "1.2", "1.3", "1.4"]
    assert [told[0][2]["text"], told[2][2]["text"]] == ["one", "two"]
    assert told[1][2]["tool"] == "refund"
    assert told[3][2]["status"] == "complete"
    assert told[3][2] == desk.chat(message, **said).json()
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
