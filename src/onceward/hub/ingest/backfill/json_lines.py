"""JSON Lines: one message on each line. Positions are byte offsets."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.backfill.item import Item, Position
from onceward.hub.ingest.backfill.lines import MARK_BYTES, MESSAGE_BYTES_MAX, lines, mark_of
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.payload import Payload


class JsonLines:
    """A JSON Lines file, or a pipe, whose size is unknown and which cannot be read again."""

    def __init__(self, path: Path | None, normalizer: Normalizer, piped: BinaryIO | None = None) -> None:
        self.name = "-" if path is None else str(path)
        self.total = None if path is None else path.stat().st_size
        self._path = path
        self._piped = piped
        self._normalizer = normalizer

    def mark(self) -> str:
        if self._path is None:
            return "-"
        with self._path.open("rb") as file:
            return mark_of(file.readline(MARK_BYTES))

    def items(self, after: Position | None) -> Iterator[Item]:
        if self._path is None:
            yield from self._read(self._piped, 0) if self._piped is not None else ()
            return
        with self._path.open("rb") as file:
            start = after if isinstance(after, int) else 0
            file.seek(start)
            yield from self._read(file, start)

    def _read(self, file: BinaryIO, offset: int) -> Iterator[Item]:
        goes_on = False
        for line in lines(file):
            begin, offset = offset, offset + len(line)
            # Skip the rest of a line that is too long. Its first piece was reported as a failed message.
            was_cut, goes_on = goes_on, len(line) == MESSAGE_BYTES_MAX and not line.endswith(b"\n")
            if not was_cut and line.strip():
                make = functools.partial(self._payload, line)
                yield Item(f"offset {begin}", offset, offset, len(line), make)

    def _payload(self, line: bytes) -> Payload:
        if len(line) >= MESSAGE_BYTES_MAX:
            raise refused("line", f"has more than {MESSAGE_BYTES_MAX} bytes")
        return self._normalizer.line(read_json(line))


def read_json(data: bytes) -> Json:
    """Parse a line of JSON; `InvalidInput` if it is invalid, or contains NaN or infinity."""
    try:
        value: Json = json.loads(data.removeprefix(b"\xef\xbb\xbf"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise refused("line", f"is not valid JSON: {error}") from None
    return value


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")
