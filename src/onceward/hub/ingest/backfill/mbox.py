"""Reader for mbox: a file of mails, each after a separator line `From sender date`.

A line that begins with `From ` is a separator only after an empty line (or at the very beginning), and only if it ends
like an envelope, with a year or a zone, because mail programs differ in which lines they quote. One `>` is removed from
`>From `, as in `mboxrd`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from onceward.core.json_text import refused
from onceward.hub.ingest.backfill.item import Item, Position
from onceward.hub.ingest.backfill.lines import MARK_BYTES, MESSAGE_BYTES_MAX, lines, mark_of
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.normalize.dates import source_time
from onceward.hub.ingest.payload import Payload

# `From ada@example.com Mon Nov 16 03:26:00 2026`, with a zone before or after the year, or without a sender.
_ENVELOPE = re.compile(
    rb"From (?:\S+ +)?(?P<date>(?:[A-Z][a-z]{2} +)?[A-Z][a-z]{2} +[0-9]{1,2} +[0-9:]{5,8}(?: +[A-Z]{3,4})?"
    rb" +[0-9]{4}(?: +[+-][0-9]{4})?)\s*",
)
_QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)
_ZONE_LAST = re.compile(
    r"(?:[A-Z][a-z]{2} +)?(?P<month>[A-Z][a-z]{2}) +(?P<day>[0-9]{1,2}) +(?P<time>[0-9:]+)(?: +[A-Z]{3,4})?"
    r" +(?P<year>[0-9]{4})(?: +(?P<zone>[+-][0-9]{4}))?"
)


class Mbox:
    """A file in the mbox format; positions are the offsets of separators."""

    def __init__(self, path: Path, normalizer: Normalizer) -> None:
        self.name = str(path)
        self.total: int | None = path.stat().st_size
        self._path = path
        self._normalizer = normalizer

    def mark(self) -> str:
        with self._path.open("rb") as file:
            # The first line belongs to the first mail, and stays when mails are added.
            return mark_of(file.readline(MARK_BYTES))

    def items(self, after: Position | None) -> Iterator[Item]:
        start = after if isinstance(after, int) else 0
        with self._path.open("rb") as file:
            file.seek(start)
            message: list[bytes] = []
            size, offset, begin = 0, start, start
            envelope: bytes | None = None
            blank = True
            for line in lines(file):
                if blank and line.startswith(b"From ") and _ENVELOPE.fullmatch(line):
                    if envelope is not None:
                        yield self._item(begin, offset, envelope, message, size)
                    envelope, message, size, begin = line, [], 0, offset
                elif envelope is not None:
                    size += len(line)
                    if size <= MESSAGE_BYTES_MAX:
                        message.append(line)
                elif line.strip():
                    raise refused(self.name, "is not an mbox file: it does not begin with a line `From …`")
                offset += len(line)
                blank = line in (b"\n", b"\r\n")
            if envelope is not None:
                yield self._item(begin, offset, envelope, message, size)

    def _item(self, begin: int, end: int, envelope: bytes, message: list[bytes], size: int) -> Item:
        make = functools.partial(self._payload, envelope, message, size)
        return Item(f"offset {begin}", end, end, size, make)

    def _payload(self, envelope: bytes, message: list[bytes], size: int) -> Payload:
        if size > MESSAGE_BYTES_MAX:
            raise refused("message", f"must be at most {MESSAGE_BYTES_MAX} bytes, got {size}")
        if message and message[-1] in (b"\n", b"\r\n"):
            # The empty line before the next separator belongs to the archive, not to the mail.
            message = message[:-1]
        raw = b"".join(message)
        if b"\n>" in raw or raw.startswith(b">"):
            raw = _QUOTED.sub(rb"\1", raw)
        return self._normalizer.mail(raw, envelope_time(envelope))


def envelope_time(line: bytes) -> str | None:
    """Return the time in a separator line, which is UTC if it has no zone."""
    found = _ENVELOPE.fullmatch(line)
    parts = found and _ZONE_LAST.fullmatch(found["date"].decode("ascii").strip())
    if not parts:
        return None
    return source_time(f"{parts['day']} {parts['month']} {parts['year']} {parts['time']} {parts['zone'] or '+0000'}")


def is_mbox(beginning: bytes) -> bool:
    return _ENVELOPE.fullmatch(beginning.lstrip(b"\r\n").partition(b"\n")[0] + b"\n") is not None
