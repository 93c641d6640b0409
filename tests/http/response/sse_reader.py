"""An event stream as a client sees it: an independent reader, written from the standard."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class ReceivedEvent:
    """An event as a browser dispatches it, with the id it would reconnect with."""

    kind: str
    data: str
    last_id: str


def read(stream: bytes) -> list[ReceivedEvent]:
    """Return the events of a whole stream, as the standard interprets it."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    seen: list[ReceivedEvent] = []
    kind, last_id = "", ""
    data: list[str] = []
    *lines, _ = re.split(r"\r\n|\n|\r", text)
    for line in lines:
        if not line:
            if data:
                seen.append(ReceivedEvent(kind, "\n".join(data), last_id))
            kind, data = "", []
            continue
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ") if colon else ""
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)
        elif name == "id" and "\x00" not in value:
            last_id = value
    return seen
