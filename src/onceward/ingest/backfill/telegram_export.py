"""`result.json` of Telegram Desktop: the messages of one chat, or of all. Positions count messages."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from onceward.core.canonical import Json
from onceward.core.text import refused
from onceward.ingest.backfill.item import Item, Position
from onceward.ingest.backfill.json_reader import JsonReader
from onceward.ingest.backfill.lines import MARK_BYTES, mark_of
from onceward.ingest.backfill.normalizing import Normalizing
from onceward.ingest.payload import Payload

_CHATS = ("chats", "left_chats")


class TelegramExport:
    """One file, in which a chat names itself before its messages. Whoever goes on reads it again from its beginning, and
    counts: that is a small part of the work.
    """

    def __init__(self, path: Path, normalizing: Normalizing) -> None:
        self.name = str(path)
        self.total: int | None = path.stat().st_size
        self._path = path
        self._normalizing = normalizing

    def mark(self) -> str:
        with self._path.open("rb") as file:
            # Exports are written anew as a whole: another size is another export.
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
        return self._normalizing.exported(chat, message)


def _messages(reader: JsonReader) -> Iterator[tuple[dict[str, Json], Json]]:
    """Of the one chat that the file is, and of each that it lists."""
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
    # At the end of a file that was cut off there is nothing, of which the reader tells.
    if reader.peek() not in (opening, ""):
        kind = "a list" if opening == "[" else "an object"
        raise refused(name, f"must be {kind}, as it is in an export of Telegram")


def _where(count: int, message: Json) -> str:
    found = message.get("id") if isinstance(message, dict) else None
    return f"message {count}" if found is None else f"message {count} (id {found})"
