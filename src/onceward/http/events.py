"""Server-sent events as bytes: cut at their ends, given ids to resume from, and the one event of our own."""

from __future__ import annotations

import json
import re

# One event larger than this is passed on and kept in parts.
EVENT_BYTES_MAX = 1024 * 1024

# A carriage return that ends a piece may be half of a line end; its other half decides.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n|\Z)){2}")
_ID = re.compile(rb"(?:^|[\r\n])id(?::|[\r\n]|$)")
_FIELD = re.compile(rb"(?:^|[\r\n])[^:\r\n]")
_OURS = re.compile(r"(\d{1,19})\.(\d{1,9})")


class Events:
    """Cuts a stream into whole events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that this piece completes, each with the blank line that ends it."""
        rest = self._rest + data
        blocks = []
        start = 0
        for end in _END.finditer(rest):
            blocks.append(rest[start : end.end()])
            start = end.end()
        self._rest = rest[start:]
        if len(self._rest) > EVENT_BYTES_MAX:
            blocks.append(self._rest)
            self._rest = b""
        return blocks

    def finish(self) -> bytes:
        """What was never completed."""
        rest, self._rest = self._rest, b""
        return rest


def is_event_stream(content_type: bytes) -> bool:
    return content_type.lower().lstrip().startswith(b"text/event-stream")


def with_id(block: bytes, version: int, before: int, piece_bytes_max: int) -> tuple[bytes, int]:
    """The event with an id, unless it has its own or is a mere comment; and into how many pieces it will be cut.

    Ours is `<version>.<number of its last piece>`: after a reconnect the stream goes on with the piece behind it.
    """
    plain = _ID.search(block) is None and _FIELD.search(block) is not None
    pieces = 1
    while True:
        whole = b"id: %d.%d\n%b" % (version, before + pieces, block) if plain else block
        needed = -(-len(whole) // piece_bytes_max)
        if needed <= pieces:
            return whole, pieces
        pieces = needed


def place_of(last_event_id: str) -> tuple[int, int] | None:
    """Version and number of an id that we gave; None for one of the application's own."""
    ours = _OURS.fullmatch(last_event_id.strip())
    return (int(ours[1]), int(ours[2])) if ours else None


def has_id(block: bytes, last_event_id: bytes) -> bool:
    """Whether this event carries this id of the application's own."""
    return re.search(rb"(?:^|[\r\n])id: ?" + re.escape(last_event_id) + rb"(?=[\r\n]|$)", block) is not None


def interrupted(detail: str) -> bytes:
    """The event that ends a stream whose producer is gone."""
    return b"event: interrupted\ndata: " + json.dumps({"code": "interrupted", "detail": detail}).encode() + b"\n\n"
