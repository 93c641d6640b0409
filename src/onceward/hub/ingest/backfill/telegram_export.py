"""Reader for Telegram Desktop's `result.json`: the messages of one chat or of all. Positions count messages."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.backfill.item import Item, Position
from onceward.hub.ingest.backfill.json_reader import JsonReader
from onceward.hub.ingest.backfill.lines import MARK_BYTES, mark_of
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.payload import Payload

_CHATS = ("chats", "left_chats")


class TelegramExport:
    """A Telegram export in one file, in which the fields of a chat come before its messages.

    A resumed run reads the file from the beginning and counts messages, which is a small part of the work.
    """

    def __init__(self, path: Path, normalizer: Normalizer) -> None:
        self.name = str(path)
        self.total: int | None = path.stat().st_size
        self._path = path
        self._normalizer = normalizer

    def mark(self) -> str:
        with self._path.open("rb") as file:
            # An export is always written as a whole, so a different size means a different export.
            return mark_of(f"{self.total} ".encode() + file.read(MARK_BYTES))

    def items(self, after: Position | None) -> Iterator[Item]:
        first = after if isinstance(after, int) else 0
        with self._path.open("rb") as file:
            reader = JsonReader(file, self.name)
            for count, (chat, message) in enumerate(_messages(reader), 1):
                if count > first:
                    make = functools.partial(self._payload, chat, message)
                    yield Item(_where(count, message), count, reader.done, 0, make)

    def _payload(self, chat: dict[str, Json], message: Json) -> Payload | None:
        if not isinstance(message, dict):
            raise refused("message", "must be an object")
        return self._normalizer.exported(chat, message)


def _messages(reader: JsonReader) -> Iterator[tuple[dict[str, Json], Json]]:
    """Yield chat and message for the chat at this level, and for each chat that it lists."""
    about: dict[str, Json] = {}
    for name in reader.names():
        if name == "messages":
            _check(reader, "[", name)
            for _ in reader.elements():
                yield about, reader.value()
        elif name in _CHATS:
            _check(reader, "{", name)
            yield from _chats(reader)
        else:
            about[name] = reader.value()


def _chats(reader: JsonReader) -> Iterator[tuple[dict[str, Json], Json]]:
    for name in reader.names():
        if name == "list":
            _check(reader, "[", name)
            for _ in reader.elements():
                yield from _messages(reader)
        else:
            reader.value()


def _check(reader: JsonReader, opening: str, name: str) -> None:
    # An empty string is the end of a truncated file, which the reader reports.
    if reader.peek() not in (opening, ""):
        kind = "a list" if opening == "[" else "an object"
        raise refused(name, f"must be {kind}, as in a Telegram export")


def _where(count: int, message: Json) -> str:
    found = message.get("id") if isinstance(message, dict) else None
    return f"message {count}" if found is None else f"message {count} (id {found})"
