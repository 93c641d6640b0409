"""Framing: frames that any WebSocket client reads, and blocks that any EventSource reads."""

from __future__ import annotations

import json

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from onceward.hub.events.framing import BLOCKS, FRAMES, EncodedEvent, frame, texts
from onceward.hub.events.log import Event

EVENT = Event(17, "n", None, "e", "i", '{"text":"ä\\n\u2028"}', "2026-01-01T00:00:00.000000Z")


def parsed(data: bytes) -> list[bytes]:
    """Return the messages as an independent implementation reads them."""
    protocol = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=None)
    protocol.receive_data(data)
    found = [event for event in protocol.events_received() if isinstance(event, Frame)]
    assert all((one.opcode, one.fin) == (Opcode.TEXT, True) for one in found)
    return [bytes(one.data) for one in found]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 200_000])
def test_a_frame_of_any_length_is_readable_by_other_libraries_and_by_ours(size: int) -> None:
    payload = b"x" * size
    several = frame(payload) + frame(b"{}") + frame(payload)

    assert parsed(several) == [payload, b"{}", payload]
    assert list(texts(several)) == [payload.decode(), "{}", payload.decode()]


def test_an_event_is_the_same_object_in_a_frame_and_in_a_block() -> None:
    encoded = EncodedEvent(EVENT)
    shown = json.loads(EVENT.json)

    assert json.loads(parsed(FRAMES.event(encoded))[0]) == {"type": "event", "event": shown}
    head, data, *end = BLOCKS.event(encoded).decode().split("\n")
    assert (head, end) == ("id: 17", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == shown


@pytest.mark.parametrize("size", [1, 100, 70_000])
def test_the_block_of_an_event_of_any_length_contains_its_object(size: int) -> None:
    event = Event(1, "n", "t", "e", "i", json.dumps({"x": "y" * size}), "2026-01-01T00:00:00.000000Z")

    assert BLOCKS.event(EncodedEvent(event)) == b"id: 1\ndata: " + event.json.encode() + b"\n\n"


def test_marks_are_typed_objects_and_blocks_have_the_id_to_resume_from() -> None:
    assert json.loads(parsed(FRAMES.mark("progress", 5, after_event_id=5))[0]) == {
        "type": "progress",
        "after_event_id": 5,
    }
    assert BLOCKS.mark("progress", 5, after_event_id=5) == (
        b'event: progress\nid: 5\ndata: {"type":"progress","after_event_id":5}\n\n'
    )
    assert BLOCKS.mark("ping", 5, after_event_id=5) == b": ping 5\n\n"
