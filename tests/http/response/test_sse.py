"""Server-sent events as bytes: cut at their ends, given ids, and unchanged in all that a client sees."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.http.response.sse_reader import read

from onceward.http.response.sse import (
    EVENT_BYTES_MAX,
    EventSplitter,
    has_id,
    interrupted,
    is_event_stream,
    place_of,
    with_id,
)

PIECE = 64 * 1024
BOM = b"\xef\xbb\xbf"


def cut(*pieces: bytes) -> list[bytes]:
    events = EventSplitter()
    blocks = [block for piece in pieces for block in events.feed(piece)]
    return [*blocks, *filter(None, [events.finish()])]


def numbered(blocks: list[bytes], version: int = 7, piece: int = PIECE) -> bytes:
    """Return all blocks with their ids, as a recording has them."""
    whole, before = b"", 0
    for block in blocks:
        given_out, pieces = with_id(block, version, before, piece)
        whole += given_out
        before += pieces
    return whole


line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
lines = st.sampled_from([
    b"data: a", b"data:b", b"data", b"data: ", b"event: tick", b": a comment", b":", b"retry: 10", b"unknown: x", b"data: id: 5", b"idle: 5",
])  # fmt: skip
own_ids = st.sampled_from([b"id: 5", b"id:6", b"id", b"id:"])
plain_streams = st.lists(st.tuples(lines | st.just(b""), line_ends).map(b"".join), max_size=12).map(b"".join)
any_streams = st.lists(st.tuples(lines | own_ids | st.just(b""), line_ends).map(b"".join), max_size=12).map(b"".join)


# Cutting.


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_event_includes_the_blank_line_that_ends_it(end: bytes) -> None:
    one, two = b"event: a" + end + b"data: 1" + end * 2, b"data: 2" + end * 2

    assert cut(one + two + b"data: half") == [one, two, b"data: half"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_an_event_is_passed_on_with_its_last_byte_and_not_later(end: bytes) -> None:
    events = EventSplitter()
    event = b"data: 1" + end * 2

    assert events.feed(event[:-1]) == []
    assert events.feed(event[-1:]) == [event]


@given(any_streams, st.lists(st.integers(0, 120), max_size=6))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [10])
@example(b"data: a\r\rdata: b\r\r", [8, 9])
def test_the_boundaries_of_network_packets_do_not_matter(stream: bytes, places: list[int]) -> None:
    cuts = sorted(min(place, len(stream)) for place in places)
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert cut(*pieces) == cut(stream)
    assert b"".join(cut(stream)) == stream


def test_a_stream_split_in_two_anywhere_has_the_same_events() -> None:
    stream = b": hello\n\nid: 4\r\ndata: 1\r\n\r\nevent: b\rdata: 2\r\rdata: 3\n\n\n\r\ndata: 4\n\r\ndata: 5"

    for place in range(len(stream) + 1):
        assert cut(stream[:place], stream[place:]) == cut(stream), place
    assert cut(*(stream[place : place + 1] for place in range(len(stream)))) == cut(stream)


@given(any_streams)
def test_a_block_is_never_more_than_one_event(stream: bytes) -> None:
    assert all(len(read(block)) <= 1 for block in cut(stream))
    assert sum(len(read(block)) for block in cut(stream)) == len(read(stream))


# Ids.


def test_an_event_without_an_id_gets_one_with_its_end_position() -> None:
    assert with_id(b"data: x\n\n", 3, 0, PIECE) == (b"id: 3.1\ndata: x\n\n", 1)
    assert with_id(b"data: x\n\n", 3, 4, PIECE) == (b"id: 3.5\ndata: x\n\n", 1)


def test_an_event_in_several_pieces_has_the_number_of_the_last_piece() -> None:
    block = b"data: " + b"x" * (2 * PIECE) + b"\n\n"

    whole, pieces = with_id(block, 3, 10, PIECE)

    assert whole == b"id: 3.13\n" + block
    assert pieces == 3 == -(-len(whole) // PIECE)


@given(st.integers(1, 200), st.integers(1, 2**40), st.integers(0, 10**8), st.integers(16, 40))
def test_the_number_of_pieces_includes_the_id_itself(size: int, version: int, before: int, piece: int) -> None:
    whole, pieces = with_id(b"data: " + b"x" * size + b"\n\n", version, before, piece)

    assert -(-len(whole) // piece) == pieces
    assert place_of(read(whole)[0].last_id) == (version, before + pieces)


@pytest.mark.parametrize(
    "block",
    [
        b"id: 5\ndata: x\n\n",
        b"data: x\nid: 5\n\n",
        b"data: x\rid:5\r\r",
        b"data: x\r\nid\r\n\r\n",
        b"data: x\nid:\n\n",
        b": only a comment\n\n",
        b":\n\n",
        b"\n\n",
        b"data: half an event",
    ],
)
def test_custom_ids_comments_and_partial_events_are_unchanged(block: bytes) -> None:
    assert with_id(block, 3, 0, PIECE) == (block, 1)


@pytest.mark.parametrize(
    "block", [b"data: id: 5\n\n", b"identity: 5\n\n", b": c\ndata: x\n\n", b"retry: 5\n\n", b"data\n\n"]
)
def test_an_event_that_only_seems_to_have_an_id_or_a_comment_gets_an_id(block: bytes) -> None:
    assert with_id(block, 3, 0, PIECE)[0] == b"id: 3.1\n" + block


@given(plain_streams)
@example(b"data: a\n\n\ndata: b\n\n")
@example(b"\r\ndata: a\r\n\r\n")
def test_adding_ids_changes_nothing_else_for_a_client(stream: bytes) -> None:
    before, after = read(stream), read(numbered(cut(stream)))

    assert [(event.kind, event.data) for event in after] == [(event.kind, event.data) for event in before]


@given(any_streams)
def test_an_event_with_a_custom_id_keeps_it(stream: bytes) -> None:
    for block in cut(stream):
        own = re.search(rb"(?:^|[\r\n])id(?::|[\r\n])", block) is not None
        assert not own or with_id(block, 3, 0, PIECE)[0] == block


@given(plain_streams)
@example(b"data: a\n\n\ndata: b\n\n")
def test_resuming_after_an_event_gives_exactly_the_events_that_follow(stream: bytes) -> None:
    """A client that reconnects with an event's id gets all later events, and only those."""
    given_out: list[bytes] = []
    for block in cut(stream):
        given_out.append(with_id(block, 7, len(given_out), PIECE)[0])
    all_seen = read(b"".join(given_out))

    for number, event in enumerate(all_seen):
        place = place_of(event.last_id)
        assert place is not None
        assert read(b"".join(given_out[place[1] :])) == all_seen[number + 1 :]


def test_a_byte_order_mark_stays_first() -> None:
    stream = BOM + b"data: a\n\ndata: b\n\n"

    assert numbered(cut(stream)) == BOM + b"id: 7.1\ndata: a\n\nid: 7.2\ndata: b\n\n"
    assert with_id(BOM + b"id: 5\ndata: a\n\n", 7, 0, PIECE)[0] == BOM + b"id: 5\ndata: a\n\n"


def test_an_id_comes_after_leading_blank_lines() -> None:
    """Before them, a client would take it for received before its event had arrived."""
    assert with_id(b"\n\r\ndata: x\n\n", 3, 0, PIECE) == (b"\n\r\nid: 3.1\ndata: x\n\n", 1)


# An event too large to be held.


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("place", range(-8, 9, 2))
def test_an_oversized_event_is_passed_on_in_parts_and_stays_one_event(end: bytes, place: int) -> None:
    """`place` is the position of its last two lines relative to the limit."""
    long = b"data: " + b"x" * (EVENT_BYTES_MAX - 6 + place) + end + b"data: y" + end * 2
    stream = b"data: a" + end * 2 + long + b"data: b" + end * 2
    first = stream.index(b"x") + EVENT_BYTES_MAX - 20
    pieces = [stream[:first], *(stream[start : start + 1] for start in range(first, len(stream)))]

    after = read(numbered(cut(*pieces)))

    assert [event.data for event in after] == ["a", "x" * (EVENT_BYTES_MAX - 6 + place) + "\ny", "b"]
    assert [event.last_id for event in after][0:2] == ["7.1", "7.1"], (
        "a part of an event is not a position to resume from"
    )
    assert after[2].last_id != "7.1"


def test_an_endless_stream_is_never_buffered() -> None:
    events = EventSplitter()
    piece = b"x" * PIECE
    given_out = sum(len(block) for _ in range(100) for block in events.feed(piece))

    assert 100 * PIECE - given_out <= EVENT_BYTES_MAX + PIECE


# Places to resume from.


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("3.5", (3, 5)),
        (" 3.5 ", (3, 5)),
        ("3.0", (3, 0)),
        ("", None),
        ("5", None),
        ("a.b", None),
        ("3.5.1", None),
        ("-3.5", None),
        ("3.", None),
        ("3.1234567890", None),
        ("9" * 20 + ".1", None),
    ],
)
def test_only_generated_ids_are_positions(text: str, place: tuple[int, int] | None) -> None:
    assert place_of(text) == place


@given(st.integers(0, 10**19 - 1), st.integers(0, 10**9 - 1))
def test_every_generated_id_is_a_position(version: int, number: int) -> None:
    assert place_of(f"{version}.{number}") == (version, number)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"id: 5\ndata: x\n\n", True),
        (b"id:5\ndata: x\n\n", True),
        (b"data: x\r\nid: 5\r\n\r\n", True),
        (b"data: x\rid: 5\r\r", True),
        (b"id: 5", True),
        (b"id: 55\n\n", False),
        (b"id: 15\n\n", False),
        (b"id:  5\n\n", False),
        (b"data: id: 5\n\n", False),
        (b"xid: 5\n\n", False),
        (b"data: 5\n\n", False),
    ],
)
def test_an_event_is_found_by_its_custom_id(block: bytes, found: bool) -> None:
    assert has_id(block, b"5") is found


def test_a_custom_id_is_not_a_pattern() -> None:
    assert not has_id(b"id: abc\n\n", b"a.c")
    assert has_id(b"id: a.c(\n\n", b"a.c(")


# The rest.


@pytest.mark.parametrize("kind", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8", b" text/event-stream"])
def test_an_event_stream_is_recognised_by_its_type(kind: bytes) -> None:
    assert is_event_stream(kind)
    assert not is_event_stream(b"application/json")
    assert not is_event_stream(b"")


@given(st.text(max_size=30))
def test_the_interrupted_event_is_one_event_whatever_its_detail(detail: str) -> None:
    (event,) = read(interrupted(detail))

    assert event.kind == "interrupted"
    assert json.loads(event.data) == {"code": "interrupted", "detail": detail}
