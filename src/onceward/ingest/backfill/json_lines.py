"""JSON Lines: one message on each line. Positions are byte offsets."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from onceward.core.canonical import Json
from onceward.core.text import refused
from onceward.ingest.backfill.item import Item, Position
from onceward.ingest.backfill.lines import MARK_BYTES, MESSAGE_BYTES_MAX, lines, mark_of
from onceward.ingest.backfill.normalizing import Normalizing
from onceward.ingest.payload import Payload


class JsonLines:
    """A file of lines, or what comes through a pipe, which has no end that is known and cannot be gone back in."""

    def __init__(self, path: Path | None, normalizing: Normalizing, piped: BinaryIO | None = None) -> None:
        self.name = "-" if path is None else str(path)
        self.total = None if path is None else path.stat().st_size
        self._path = path
        self._piped = piped
        self._normalizing = normalizing

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
            # The rest of a line that is too long belongs to its first piece, which has failed.
            was_cut, goes_on = goes_on, len(line) == MESSAGE_BYTES_MAX and not line.endswith(b"\n")
            if not was_cut and line.strip():
                make = functools.partial(self._payload, line)
                yield Item(f"offset {begin}", offset, offset, len(line), make)

    def _payload(self, line: bytes) -> Payload:
        if len(line) >= MESSAGE_BYTES_MAX:
            raise refused("line", f"has more than {MESSAGE_BYTES_MAX} bytes")
        return self._normalizing.line(read_json(line))


def read_json(data: bytes) -> Json:
    """The value, without what no row can hold; `InvalidInput` when there is none."""
    try:
        value: Json = json.loads(data.removeprefix(b"\xef\xbb\xbf"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise refused("line", f"is not JSON: {error}") from None
    return value


def _refuse(name: str) -> Json:
    raise ValueError(f"{name} is no JSON number")
