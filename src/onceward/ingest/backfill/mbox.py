"""mbox: mails one behind the other, each behind a line `From sender date`.

A line that begins with `From ` separates only behind an empty line (or at the very beginning), and only if it ends like
an envelope, with a year or a zone: mail programs differ in what they quote. `>From ` is unquoted by one `>`, as `mboxrd` has it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from onceward.core.text import refused
from onceward.ingest.backfill.item import Item, Position
from onceward.ingest.backfill.lines import MARK_BYTES, MESSAGE_BYTES_MAX, lines, mark_of
from onceward.ingest.backfill.normalizing import Normalizing
from onceward.ingest.date import source_time
from onceward.ingest.payload import Payload

# `From ada@example.com Mon Nov 16 03:26:00 2026`, with a zone before or behind the year, or without a sender.
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

    def __init__(self, path: Path, normalizing: Normalizing) -> None:
        self.name = str(path)
        self.total: int | None = path.stat().st_size
        self._path = path
        self._normalizing = normalizing

    def mark(self) -> str:
        with self._path.open("rb") as file:
            # The first line tells of the first mail, and stays when mails are added.
            return mark_of(file.readline(MARK_BYTES))

    def items(self, after: Position | None) -> Iterator[Item]:
        start = after if isinstance(after, int) else 0
        with self._path.open("rb") as file:
            file.seek(start)
            kept: list[bytes] = []
            size, offset, begin = 0, start, start
            envelope: bytes | None = None
            blank = True
            for line in lines(file):
                if blank and line.startswith(b"From ") and _ENVELOPE.fullmatch(line):
                    if envelope is not None:
                        yield self._item(begin, offset, envelope, kept, size)
                    envelope, kept, size, begin = line, [], 0, offset
                elif envelope is not None:
                    size += len(line)
                    if size <= MESSAGE_BYTES_MAX:
                        kept.append(line)
                elif line.strip():
                    raise refused(self.name, "is no mbox: it does not begin with a line `From …`")
                offset += len(line)
                blank = line in (b"\n", b"\r\n")
            if envelope is not None:
                yield self._item(begin, offset, envelope, kept, size)

    def _item(self, begin: int, end: int, envelope: bytes, kept: list[bytes], size: int) -> Item:
        make = functools.partial(self._payload, envelope, kept, size)
        return Item(f"offset {begin}", end, end, size, make)

    def _payload(self, envelope: bytes, kept: list[bytes], size: int) -> Payload:
        if size > MESSAGE_BYTES_MAX:
            raise refused("message", f"has {size} bytes; {MESSAGE_BYTES_MAX} are the most")
        if kept and kept[-1] in (b"\n", b"\r\n"):
            # The empty line before the next separator is the archive's, not the mail's.
            kept = kept[:-1]
        raw = b"".join(kept)
        if b"\n>" in raw or raw.startswith(b">"):
            raw = _QUOTED.sub(rb"\1", raw)
        return self._normalizing.mail(raw, envelope_time(envelope))


def envelope_time(line: bytes) -> str | None:
    """The time of a separator; without a zone it is taken for UTC."""
    found = _ENVELOPE.fullmatch(line)
    parts = found and _ZONE_LAST.fullmatch(found["date"].decode("ascii").strip())
    if not parts:
        return None
    return source_time(f"{parts['day']} {parts['month']} {parts['year']} {parts['time']} {parts['zone'] or '+0000'}")


def looks_like_mbox(beginning: bytes) -> bool:
    return _ENVELOPE.fullmatch(beginning.lstrip(b"\r\n").partition(b"\n")[0] + b"\n") is not None
