"""Chat streams over HTTP: joining, resuming, a late start, and following a turn that is superseded."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.hub.chat_hub import COMPLETED, REUSED, ChatHub, events, open_chat_hub, stream
from tests.waiting import until


@pytest.fixture(scope="module")
def chat_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatHub]:
    with open_chat_hub(tmp_path_factory.mktemp("chat_hub")) as chat_hub:
        yield chat_hub


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


def test_a_stream_has_the_deltas_and_ends_with_the_response_of_chat(chat_hub: ChatHub, session: str) -> None:
    message = f"say one\nrefund order-{session}\nsay two"
    fields: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    answer = stream(chat_hub, message, **fields)
    received = events(answer.text)

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [name for _, name, _ in received] == ["delta", "tool", "delta", "done"]
    assert [number for number, _, _ in received] == ["1.1", "1.2", "1.3", "1.4"]
    assert [received[0][2]["text"], received[2][2]["text"]] == ["one", "two"]
    assert received[1][2]["tool"] == "refund"
    assert received[3][2]["status"] == "complete"
    assert received[3][2] == chat_hub.chat(message, **fields).json()
    assert events(chat_hub.client.get(f"/turns/{received[3][2]['turn_id']}/events").text) == received


def test_a_finished_stream_is_refused_unless_requested(chat_hub: ChatHub, session: str) -> None:
    fields: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    first = events(stream(chat_hub, "say one\nsay two", **fields).text)

    refused = stream(chat_hub, "say one\nsay two", **fields)
    replayed = stream(chat_hub, "say one\nsay two", query="?replay=1", **fields)
    resumed = stream(chat_hub, "say one\nsay two", last="1.1", **fields)
    other = stream(chat_hub, "something else", **fields)

    assert (refused.status_code, refused.json()["detail"]) == (409, COMPLETED)
    assert events(replayed.text) == first
    assert events(resumed.text) == first[1:]
    assert (other.status_code, other.json()["detail"]) == (422, REUSED)
    assert chat_hub.chat("say one\nsay two", **fields).json() == first[-1][2]


def test_a_request_during_the_turn_joins_the_stream_from_its_beginning(chat_hub: ChatHub, session: str) -> None:
    fifo = chat_hub.fifo()
    fields: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    message = f"say one\nhold {fifo}\nsay two"
    turn_id = chat_hub.chat(message, **fields).json()["turn_id"]
    body = {"message": message, **fields}
    with (
        chat_hub.client.stream("POST", "/chat/stream", json=body) as from_the_beginning,
        chat_hub.client.stream("POST", "/chat/stream", json=body, headers={"Last-Event-ID": "1.1"}) as from_the_second,
    ):
        fifo.release()  # both have joined: their responses have begun
        followed = [events(one.read().decode()) for one in (from_the_beginning, from_the_second)]

    recorded = events(chat_hub.client.get(f"/turns/{turn_id}/events").text)
    assert followed == [recorded, recorded[1:]]


def test_a_stream_of_a_superseded_turn_does_not_continue_in_the_superseding_turn(
    chat_hub: ChatHub, session: str
) -> None:
    fifo = chat_hub.fifo()
    fields: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    message = f"say old\nhold {fifo}"
    first = chat_hub.chat(message, **fields).json()
    until(lambda: chat_hub.state(first["turn_id"]) == "processing", "it does not run")
    second = chat_hub.chat("say new", session_key=session).json()
    fifo.release()

    resumed = stream(chat_hub, message, last="1.1", **fields)

    assert resumed.headers["content-location"] == f"/turns/{second['turn_id']}/events"
    assert [name for _, name, _ in events(resumed.text)] == ["interrupted", "delta", "delta", "done"]


def test_a_follower_of_a_superseded_turn_learns_which_turn_replaced_it(chat_hub: ChatHub, session: str) -> None:
    fifo = chat_hub.fifo()
    first = chat_hub.chat(f"say old\nhold {fifo}", session_key=session).json()
    path = f"/turns/{first['turn_id']}/events"
    text = ""
    second: dict[str, Any] = {}
    with chat_hub.client.stream("GET", path) as live:
        for part in live.iter_text():
            text += part
            if "event: delta" in text and not second:
                second = chat_hub.chat("say new", session_key=session).json()
    fifo.release()

    received = events(text)
    assert [name for _, name, _ in received] == ["delta", "superseded"]
    assert received[-1][2] == {"turn_id": first["turn_id"], "superseded_by": second["turn_id"]}
    assert events(chat_hub.client.get(path).text) == received[-1:]


def test_an_id_of_an_earlier_attempt_gets_an_interruption_and_the_new_stream(chat_hub: ChatHub, session: str) -> None:
    received = chat_hub.done("say one", session_key=session)
    path = f"/turns/{received['turn_id']}/events"
    recorded = events(chat_hub.client.get(path).text)

    for last in ("0.7", "9.1"):
        answer = chat_hub.client.get(path, headers={"Last-Event-ID": last})

        assert events(answer.text)[0] == (last, "interrupted", {"turn_id": received["turn_id"]})
        assert events(answer.text)[1:] == recorded


@pytest.mark.parametrize("last", ["1.2", "1.3", "1.99"])
def test_a_client_at_the_end_gets_the_last_event_under_its_own_id(chat_hub: ChatHub, session: str, last: str) -> None:
    received = chat_hub.done("say one\nsay two", session_key=session)
    path = f"/turns/{received['turn_id']}/events"

    answer = chat_hub.client.get(path, headers={"Last-Event-ID": last})

    assert events(answer.text) == [("1.3", "done", received)]


def test_a_new_message_is_followed_from_its_beginning_whatever_the_last_event_id(
    chat_hub: ChatHub, session: str
) -> None:
    for last in ("1.2", "7.1"):
        received = events(stream(chat_hub, f"say one\nsay {last}", last=last, session_key=session).text)

        assert [(number, name) for number, name, _ in received] == [("1.1", "delta"), ("1.2", "delta"), ("1.3", "done")]


def test_a_client_that_saw_a_message_fail_gets_its_retry_from_the_beginning(chat_hub: ChatHub, session: str) -> None:
    broken = chat_hub.folder / "broken"
    broken.touch()
    fields: dict[str, Any] = {"session_key": session, "idempotency_key": f"k-{session}"}
    failed = chat_hub.chat("say one\nfail", wait=30, **fields).json()
    broken.unlink()

    received = events(stream(chat_hub, "say one\nfail", last="1.1", **fields).text)

    assert failed["status"] == "failed"
    assert [name for _, name, _ in received] == ["interrupted", "delta", "done"]
