"""The messages of a client, and where a session begins: pure decisions."""

from __future__ import annotations

import json

import pytest

from onceward.hub.events.handshake import CloseReason, Handshake, Start, read_client_message, read_handshake, start
from onceward.hub.events.log import Extent, Filter

HERE = Extent(oldest_event_id=5, last_event_id=9, log_epoch="e")


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({}, Handshake(None, Filter(), None)),
        ({"after_event_id": None, "subscriptions": None, "log_epoch": None}, Handshake(None, Filter(), None)),
        ({"after_event_id": 0, "log_epoch": "e"}, Handshake(0, Filter(), "e")),
        ({"subscriptions": []}, Handshake(None, Filter(), None)),
        ({"subscriptions": {}}, Handshake(None, Filter(), None)),
        ({"subscriptions": {"topics": None, "names": []}}, Handshake(None, Filter(), None)),
        ({"subscriptions": ["t1", "t2", "t1"]}, Handshake(None, Filter(topics=frozenset({"t1", "t2"})), None)),
        ({"subscriptions": {"topics": ["t1"]}}, Handshake(None, Filter(topics=frozenset({"t1"})), None)),
        ({"subscriptions": {"names": ["ä"]}}, Handshake(None, Filter(names=frozenset({"ä"})), None)),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_hello_has_a_cursor_and_filters(sent: dict[str, object], meant: Handshake) -> None:
    assert read_handshake(json.dumps({"type": "hello", **sent})) == meant


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "",
        "[]",
        '"hello"',
        None,
        '{"type":"hello","type":"hello"}',
        '{"type":"hello","after_event_id":NaN}',
        "[" * 30_000,
        '{"type":"hello","after_event_id":' + "9" * 5_000 + "}",
        '{"type":"hi"}',
        "{}",
        '{"type":"hello","after_event_id":true}',
        '{"type":"hello","after_event_id":-1}',
        '{"type":"hello","after_event_id":1.0}',
        '{"type":"hello","after_event_id":"1"}',
        '{"type":"hello","log_epoch":1}',
        '{"type":"hello","subscriptions":"t1"}',
        '{"type":"hello","subscriptions":false}',
        '{"type":"hello","subscriptions":[1]}',
        '{"type":"hello","subscriptions":[["t1"]]}',
        '{"type":"hello","subscriptions":[""]}',
        '{"type":"hello","subscriptions":["a\\u0000b"]}',
        '{"type":"hello","subscriptions":["\\ud800"]}',
        '{"type":"hello","subscriptions":{"topics":"t1"}}',
        '{"type":"hello","subscriptions":{"topic":["t1"]}}',
        json.dumps({"type": "hello", "subscriptions": [f"t{number}" for number in range(1_001)]}),
        '{"type":"hello","after":1}',
        json.dumps({"type": "hello", "subscriptions": ["x" * 65_536]}),
        '{"type":"hello","subscriptions":["' + "ä" * 32_768 + '"]}',
    ],
    ids=lambda text: repr(text)[:60],
)
def test_an_invalid_hello_is_refused_with_the_reason(text: str | None) -> None:
    refused = read_handshake(text)

    assert isinstance(refused, CloseReason)
    assert (refused.number, refused.code) == (4400, "bad-message")
    assert refused.detail


def test_after_the_hello_a_client_sends_only_ping_and_pong() -> None:
    assert read_client_message('{"type":"ping"}') is True
    assert read_client_message('{"type":"pong"}') is False
    for text in ('{"type":"hello"}', "{}", "ping", None):
        assert isinstance(read_client_message(text), CloseReason)


@pytest.mark.parametrize(
    ("after", "begins"),
    [
        (None, Start(9, HERE, None)),
        (9, Start(9, HERE, None)),
        (4, Start(4, HERE, None)),
        (3, Start(4, HERE, 3)),
        (0, Start(4, HERE, 0)),
    ],
    ids=str,
)
def test_a_session_starts_after_its_cursor_or_at_the_start_of_the_log(after: int | None, begins: Start) -> None:
    assert start(HERE, after, "e") == begins


def test_a_cursor_of_another_log_is_refused() -> None:
    future, other = start(HERE, 10), start(HERE, 3, "f")

    assert isinstance(future, CloseReason)
    assert isinstance(other, CloseReason)
    assert (future.number, other.number) == (4409, 4410)
