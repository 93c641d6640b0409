"""Server-sent events as bytes: cut at their ends, given ids to resume from, and the one event of our own."""

from __future__ import annotations

import json
import re

# One event larger than this is passed on and kept in parts.
EVENT_BYTES_MAX = 1024 * 1024

# A byte order mark is left out by clients, but only at the very beginning.
_MARK = b"\xef\xbb\xbf"
# A carriage return that ends a piece may be half of a line end; its other half decides.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n|\Z)){2}")
_END_BYTES_MAX = 4
_ENDED = re.compile(rb"(?:\r\n|\n|\r){2}\Z")
_BLANK = re.compile(rb"[\r\n]*")
_ID = re.compile(rb"(?:^|[\r\n])id(?::|[\r\n]|$)")
_FIELD = re.compile(rb"(?:^|[\r\n])[^:\r\n]")
_OURS = re.compile(r"(\d{1,19})\.(\d{1,9})")


class Events:
    """Cuts a stream into whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self._within = False  # an oversized event, the beginning of which has been given out

    def feed(self, data: bytes) -> list[bytes]:
        """The events that this piece completes, each with the blank line that ends it.

        Of an oversized event that line comes alone, so that no part of it looks like an event.
        """
        rest = self._rest + data
        blocks = []
        start = 0
        # What was searched before is not searched again, but for a line end that may now be followed by another.
        for end in _END.finditer(rest, max(0, len(self._rest) - _END_BYTES_MAX)):
            if self._within:
                self._within = False
                blocks.append(rest[start : end.start()])
                start = end.start()
            blocks.append(rest[start : end.end()])
            start = end.end()
        self._rest = rest[start:]
        if len(self._rest) > EVENT_BYTES_MAX:
            # A line end at the end may be half of a blank line.
            part = self._rest.rstrip(b"\r\n")
            blocks.append(part)
            self._rest = self._rest[len(part) :]
            self._within = True
        return [block for block in blocks if block]

    def finish(self) -> bytes:
        """What was never completed."""
        rest, self._rest = self._rest, b""
        return rest


def is_event_stream(content_type: bytes) -> bool:
    return content_type.lower().lstrip().startswith(b"text/event-stream")


def with_id(block: bytes, version: int, before: int, piece_bytes_max: int) -> tuple[bytes, int]:
    """The event with an id, unless it has its own, is a mere comment or not whole; and the pieces it will be cut into.

    Ours is `<version>.<number of its last piece>`: after a reconnect the stream goes on with the piece behind it.
    """
    marked = before == 0 and block.startswith(_MARK)
    # Blank lines in front are the end of nothing; an id before them would be an event of its own.
    lead = _BLANK.match(block, len(_MARK) if marked else 0)
    front, event = (block[: lead.end()], block[lead.end() :]) if lead else (b"", block)
    plain = _ID.search(event) is None and _FIELD.search(event) is not None and ends(event)
    pieces = 1
    while True:
        whole = b"%bid: %d.%d\n%b" % (front, version, before + pieces, event) if plain else block
        needed = -(-len(whole) // piece_bytes_max)
        if needed <= pieces:
            return whole, pieces
        pieces = needed


def place_of(last_event_id: str) -> tuple[int, int] | None:
    """Version and number of an id as we give them. One of the application's own may look like it."""
    ours = _OURS.fullmatch(last_event_id.strip())
    return (int(ours[1]), int(ours[2])) if ours else None


def ends(block: bytes) -> bool:
    """Whether the event ends with this block; an oversized one has several."""
    return _ENDED.search(block) is not None


def has_id(block: bytes, last_event_id: bytes) -> bool:
    """Whether this event carries this id of the application's own."""
    return re.search(rb"(?:^|[\r\n])id: ?" + re.escape(last_event_id) + rb"(?=[\r\n]|$)", block) is not None


def interrupted(detail: str) -> bytes:
    """The event that ends a stream whose producer is gone."""
    return b"event: interrupted\ndata: " + json.dumps({"code": "interrupted", "detail": detail}).encode() + b"\n\n"
