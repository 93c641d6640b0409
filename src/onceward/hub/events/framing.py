"""Framing: the bytes of events as WebSocket frames and as blocks of an SSE stream.

An event is encoded once, when the process reads it. All clients get the same bytes, because frames from a server are
not masked. Everything else that is sent to a client is called a mark: an object with a `type`, such as `caught_up`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from onceward.core.json_text import written
from onceward.hub.events.log import Event

_OPEN = b'{"type":"event","event":'
_CLOSE = b"}"

_FINAL_TEXT = 0x81  # a text message in a single frame
_LENGTH_16_BITS, _LENGTH_64_BITS = 126, 127
_SHORT_MAX, _MEDIUM_MAX = 125, 0xFFFF

# The size of a frame's header, by its second byte. Every other header has two bytes.
_HEAD = {_LENGTH_16_BITS: 4, _LENGTH_64_BITS: 10}


class EncodedEvent:
    """An event with its bytes. The frame is made at once, the SSE block when the first SSE client needs it."""

    __slots__ = ("_block", "event_id", "frame", "name", "topic_id")

    def __init__(self, event: Event) -> None:
        self.event_id = event.event_id
        self.name = event.name
        self.topic_id = event.topic_id
        self.frame = frame(b"".join((_OPEN, event.json.encode(), _CLOSE)))
        self._block: bytes | None = None

    @property
    def block(self) -> bytes:
        """The event as a message of an SSE stream. Its data is the event object."""
        if self._block is None:
            shown = self.frame[_head_bytes(self.frame[1]) + len(_OPEN) : -len(_CLOSE)]
            self._block = b"id: %d\ndata: %s\n\n" % (self.event_id, shown)
        return self._block


class Framing(Protocol):
    """Encoding of events and marks for one kind of client."""

    def event(self, encoded: EncodedEvent, /) -> bytes: ...

    def mark(self, kind: str, after: int, /, **fields: object) -> bytes:
        """Encode an object with its `type`. `after` is the cursor of the client that gets it."""
        ...


class Frames:
    """Frames of a WebSocket."""

    def event(self, encoded: EncodedEvent, /) -> bytes:
        return encoded.frame

    def mark(self, kind: str, after: int, /, **fields: object) -> bytes:
        del after  # only SSE needs the cursor outside of the object: a browser sends it back as Last-Event-ID
        return frame(written({"type": kind, **fields}).encode())


class Blocks:
    """Blocks of an SSE stream. A mark is a named event whose id is the cursor to resume from; a ping is a comment."""

    def event(self, encoded: EncodedEvent, /) -> bytes:
        return encoded.block

    def mark(self, kind: str, after: int, /, **fields: object) -> bytes:
        if kind == "ping":
            return b": ping %d\n\n" % after
        return f"event: {kind}\nid: {after}\ndata: {written({'type': kind, **fields})}\n\n".encode()


FRAMES = Frames()
BLOCKS = Blocks()


def frame(payload: bytes) -> bytes:
    """Return a server's text message as one frame."""
    size = len(payload)
    if size <= _SHORT_MAX:
        head = bytes((_FINAL_TEXT, size))
    elif size <= _MEDIUM_MAX:
        head = bytes((_FINAL_TEXT, _LENGTH_16_BITS)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL_TEXT, _LENGTH_64_BITS)) + size.to_bytes(8, "big")
    return head + payload


def texts(frames: bytes) -> Iterator[str]:
    """Decode frames into their messages, for a server that accepts only whole messages and frames them itself."""
    at = 0
    while at < len(frames):
        head = _head_bytes(frames[at + 1])
        size = frames[at + 1] if head == 2 else int.from_bytes(frames[at + 2 : at + head], "big")  # noqa: PLR2004
        yield frames[at + head : at + head + size].decode()
        at += head + size


def _head_bytes(length: int) -> int:
    return _HEAD.get(length, 2)
