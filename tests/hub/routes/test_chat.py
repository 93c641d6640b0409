"""Chat over HTTP: retries, late messages, and requests for the turns of others."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.hub.chat_hub import BUSY, REUSED, ChatHub, open_chat_hub, stream
from tests.waiting import until


@pytest.fixture(scope="module")
def chat_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatHub]:
    with open_chat_hub(tmp_path_factory.mktemp("chat_hub")) as chat_hub:
        yield chat_hub


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


def test_a_message_is_accepted_at_once_and_answered_later(chat_hub: ChatHub, session: str) -> None:
    answer = chat_hub.chat("hello", session_key=session)
    body = answer.json()

    assert (answer.status_code, set(body), body["status"]) == (200, {"status", "turn_id"}, "processing")
    until(lambda: chat_hub.state(body["turn_id"]) == "complete", "it is not answered")
    turn = chat_hub.turn(body["turn_id"])
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


def test_omitted_fields_get_defaults(chat_hub: ChatHub) -> None:
    body = chat_hub.done(f"hello {uuid.uuid4()}")

    assert chat_hub.turn(body["turn_id"])["session_key"] == "local:default:local:api"


def test_a_key_is_busy_then_answered_and_never_matches_another_message(chat_hub: ChatHub, session: str) -> None:
    fifo, key = chat_hub.fifo(), f"k-{session}"
    first = chat_hub.chat(f"hold {fifo}", key, session_key=session).json()
    until(lambda: chat_hub.state(first["turn_id"]) == "processing", "it does not run")

    busy = chat_hub.chat(f"hold {fifo}", key, session_key=session)
    other = chat_hub.chat("something else", key, session_key=session)
    fifo.release()
    waited = chat_hub.chat(f"hold {fifo}", key, wait=20, session_key=session)
    again = chat_hub.chat(f"hold {fifo}", idempotency_key=key, session_key=session)

    assert (busy.status_code, busy.json()["detail"], busy.headers["Retry-After"]) == (409, BUSY, "1")
    assert busy.headers["Content-Location"] == f"/turns/{first['turn_id']}"
    assert (other.status_code, other.json()["detail"]) == (422, REUSED)
    assert waited.json() == again.json()
    assert (again.status_code, again.json()["status"], again.json()["turn_id"]) == (200, "complete", first["turn_id"])
    assert [one["content"] for one in again.json()["messages"]] == [f"hold {fifo}"]


def test_the_header_takes_precedence_over_the_field(chat_hub: ChatHub, session: str) -> None:
    one = chat_hub.done("hello", session_key=session, idempotency_key=f"a-{session}")
    by_header = chat_hub.chat("hello", f"b-{session}", session_key=session, idempotency_key=f"a-{session}", wait=20)

    assert by_header.json()["turn_id"] != one["turn_id"]


def test_a_key_is_free_some_time_after_its_turn_is_complete(chat_hub: ChatHub, session: str) -> None:
    one = chat_hub.chat("first", f"k-{session}", wait=20, session_key=session).json()

    def taken() -> dict[str, Any] | None:
        answer = chat_hub.chat("second", f"k-{session}", session_key=session)
        return answer.json() if answer.status_code == 200 else None

    assert until(taken, "the key is never free")["turn_id"] != one["turn_id"]


def test_the_same_words_without_a_key_are_a_duplicate(chat_hub: ChatHub, session: str) -> None:
    one = chat_hub.done("hello", session_key=session)
    again = chat_hub.chat("hello", session_key=session)
    other_session = chat_hub.done("hello", session_key=f"{session}-2")
    with_id = chat_hub.done("hello", session_key=session, message_id="m1")

    assert (again.status_code, again.json()["duplicate_of"]) == (200, one["turn_id"])
    assert again.json()["response"] == one["response"]
    assert len({one["turn_id"], other_session["turn_id"], with_id["turn_id"]}) == 3


def test_a_message_id_is_a_duplicate_whatever_the_key(chat_hub: ChatHub, session: str) -> None:
    one = chat_hub.done("hello", session_key=session, message_id="m1")
    again = chat_hub.chat("hello", session_key=session, message_id="m1").json()
    keyed = chat_hub.chat("hello", f"k-{session}", session_key=session, message_id="m1")

    assert again["duplicate_of"] == one["turn_id"]
    assert keyed.json()["turn_id"] == one["turn_id"]
    assert len(chat_hub.turn(one["turn_id"])["messages"]) == 1


def test_after_a_supersede_the_first_key_answers_with_the_superseding_turn(chat_hub: ChatHub, session: str) -> None:
    fifo, key = chat_hub.fifo(), f"k-{session}"
    first = chat_hub.chat(f"hold {fifo}", key, session_key=session).json()
    until(lambda: chat_hub.state(first["turn_id"]) == "processing", "it does not run")
    waiting: list[httpx.Response] = []
    waiter = threading.Thread(
        target=lambda: waiting.append(chat_hub.chat(f"hold {fifo}", key, wait=20, session_key=session))
    )
    waiter.start()

    second = chat_hub.chat("and this", session_key=session).json()
    fifo.release()
    waiter.join()

    old = chat_hub.turn(first["turn_id"])
    assert (old["status"], old["superseded_by"]) == ("superseded", second["turn_id"])
    assert waiting[0].json()["turn_id"] == second["turn_id"]
    assert waiting[0].json()["status"] == "complete"
    new = chat_hub.turn(second["turn_id"])
    assert new["turn_group_id"] == old["turn_group_id"]
    assert [one["content"] for one in new["messages"]] == [f"hold {fifo}", "and this"]


def test_a_turn_that_has_paid_is_not_superseded_and_pays_once(chat_hub: ChatHub, session: str) -> None:
    fifo, order = chat_hub.fifo(), f"order-{session}"
    first = chat_hub.chat(f"keep {order} {fifo}", session_key=session).json()
    until(
        lambda: order in (chat_hub.folder / "begun").read_text() if (chat_hub.folder / "begun").exists() else False,
        "no call",
    )

    second = chat_hub.chat("and this", session_key=session).json()
    fifo.release()
    done = chat_hub.client.post(
        "/chat", json={"message": "and this", "session_key": session}, headers={"Prefer": "wait=20"}
    ).json()

    assert chat_hub.state(first["turn_id"]) == "complete"
    assert chat_hub.turn(second["turn_id"])["turn_group_id"] != chat_hub.turn(first["turn_id"])["turn_group_id"]
    assert (done["turn_id"], done["duplicate_of"]) == (second["turn_id"], second["turn_id"])
    assert chat_hub.paid().count(order) == 1
    (call,) = chat_hub.turn(first["turn_id"])["tools"]
    assert (call["tool"], call["effect"], call["status"]) == ("keep", "irreversible", "done")
    assert call["key"].startswith(f"keep:order:{order}:turn_group:")


def test_a_failed_turn_frees_its_key_and_the_retry_keeps_the_group(chat_hub: ChatHub, session: str) -> None:
    broken = chat_hub.folder / "broken"
    broken.touch()
    first = chat_hub.chat("fail", f"k-{session}", wait=30, session_key=session).json()
    broken.unlink()

    second = chat_hub.chat("fail", f"k-{session}", wait=20, session_key=session).json()

    assert (first["status"], first["error"]) == ("failed", "RuntimeError: told to fail")
    assert (second["status"], second["response"]) == ("complete", "answered: fail")
    groups = {chat_hub.turn(one["turn_id"])["turn_group_id"] for one in (first, second)}
    assert (len(groups), first["turn_id"] != second["turn_id"]) == (1, True)


def _received(chat_hub: ChatHub) -> int:
    """Return the number of stored messages."""
    with contextlib.closing(sqlite3.connect(chat_hub.folder / "data" / "hub.db")) as database:
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
def test_an_invalid_message_is_refused(chat_hub: ChatHub, path: str, body: dict[str, Any], field: str) -> None:
    stored = _received(chat_hub)

    answer = chat_hub.client.post(path, json=body)

    assert answer.status_code == 400, answer.text
    assert any(field in one["field"] for one in answer.json()["errors"]), answer.json()
    assert _received(chat_hub) == stored


def test_null_fields_get_defaults_like_omitted_ones(chat_hub: ChatHub) -> None:
    names = ("tenant_id", "customer_id", "agent_id", "channel", "message_id", "session_key", "idempotency_key")
    body = chat_hub.done(f"hello {uuid.uuid4()}", metadata=None, **dict.fromkeys(names))

    assert chat_hub.turn(body["turn_id"])["session_key"] == "local:default:local:api"


def test_an_invalid_key_or_id_is_refused(chat_hub: ChatHub, session: str) -> None:
    for field, headers, fields in (
        ("idempotency_key", {}, {"idempotency_key": "ü"}),
        ("idempotency_key", {}, {"idempotency_key": ""}),
        ("Idempotency-Key", {"Idempotency-Key": '"a'}, {"idempotency_key": "b"}),
        ("Idempotency-Key", {"Idempotency-Key": "a", "X-Idempotency-Key": "b"}, {}),
        ("X-Idempotency-Key", {"X-Idempotency-Key": "a b"}, {}),
    ):
        for path in ("/chat", "/chat/stream"):
            refused = chat_hub.client.post(
                path, json={"message": "x", "session_key": session, **fields}, headers=headers
            )
            assert (refused.status_code, [one["field"] for one in refused.json()["errors"]]) == (400, [field])
    assert stream(chat_hub, "x", last="seven", session_key=session).status_code == 400
    assert chat_hub.client.get("/turns/nobody").status_code == 404
    assert chat_hub.client.get("/turns/nobody/events").status_code == 404


def test_the_checks_of_beats_and_tools_are_counted(chat_hub: ChatHub, session: str) -> None:
    chat_hub.done(f"refund order-{session}", session_key=session)
    counted = chat_hub.client.get("/metrics").text

    for kind in ("client_provided", "auto_generated", "beat_based", "tool_based"):
        (line,) = [
            one for one in counted.splitlines() if one.startswith(f'idempotency_key_type_total{{type="{kind}"}}')
        ]
        assert float(line.split()[-1]) > 0 or kind == "client_provided"
