"""Server-sent events as bytes: splitting a stream, adding ids to resume from, and the `interrupted` event."""

from __future__ import annotations

import json
import re

# A larger event is passed on and recorded in parts.
EVENT_BYTES_MAX = 1024 * 1024

# Clients ignore a byte order mark, but only at the beginning of the stream.
_MARK = b"\xef\xbb\xbf"
# A carriage return at the end of a piece may be half of a line end: wait for the next byte.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n|\Z)){2}")
_END_BYTES_MAX = 4
_ENDED = re.compile(rb"(?:\r\n|\n|\r){2}\Z")
_BLANK = re.compile(rb"[\r\n]*")
_ID = re.compile(rb"(?:^|[\r\n])id(?::|[\r\n]|$)")
_FIELD = re.compile(rb"(?:^|[\r\n])[^:\r\n]")
_OURS = re.compile(r"(\d{1,19})\.(\d{1,9})")


class EventSplitter:
    """Incremental splitter of an event stream into complete events."""

    def __init__(self) -> None:
        self._rest = b""
        self._within = False  # inside an oversized event whose beginning was already returned

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that this piece completes, each with the blank line at its end.

        For an oversized event that line is returned alone, so that no part of it looks like an event.
        """
        rest = self._rest + data
        blocks = []
        start = 0
        # Search only new data, and the last bytes of the old: they may be the first half of a blank line.
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
        """Return the incomplete rest."""
        rest, self._rest = self._rest, b""
        return rest


def is_event_stream(content_type: bytes) -> bool:
    return content_type.lower().lstrip().startswith(b"text/event-stream")


def with_id(block: bytes, version: int, before: int, piece_bytes_max: int) -> tuple[bytes, int]:
    """Add an id to an event. Return the event and the number of pieces in which it is recorded.

    An event with its own id, a comment, and an incomplete event stay as they are. The id is `<version>.<number of its
    last piece>`: after a reconnect the stream continues with the next piece. `before` is the number of earlier pieces.
    """
    marked = before == 0 and block.startswith(_MARK)
    # Insert the id after leading blank lines; before them it would be a separate event.
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
    """Parse version and number from one of our ids; None for any other. An id of the application may look the same."""
    ours = _OURS.fullmatch(last_event_id.strip())
    return (int(ours[1]), int(ours[2])) if ours else None


def ends(block: bytes) -> bool:
    """Return whether this block is the end of its event. An oversized event has several blocks."""
    return _ENDED.search(block) is not None


def has_id(block: bytes, last_event_id: bytes) -> bool:
    """Return whether this event has this id."""
    return re.search(rb"(?:^|[\r\n])id: ?" + re.escape(last_event_id) + rb"(?=[\r\n]|$)", block) is not None


def interrupted(detail: str) -> bytes:
    """Return the event that ends a stream whose producer is gone."""
    return b"event: interrupted\ndata: " + json.dumps({"code": "interrupted", "detail": detail}).encode() + b"\n\n"
