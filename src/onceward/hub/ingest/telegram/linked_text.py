"""Text of a message with the positions of its links.

The Bot API gives positions in UTF-16 code units; the export splits the text into pieces. Here positions are characters,
for both forms.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.core.json_text import refused
from onceward.hub.ingest.normalize.fields import Fields

# Characters with two units in UTF-16.
_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Link:
    """A range of text that Telegram shows as a link. `target` is None if the text itself is the URL."""

    start: int
    end: int
    target: str | None


@dataclass(frozen=True, slots=True)
class Passage:
    text: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text that was sent in pieces."""

    text: str
    is_link: bool = False
    target: str | None = None


def joined(pieces: Iterable[Piece]) -> Passage:
    texts: list[str] = []
    links: list[Link] = []
    at = 0
    for piece in pieces:
        texts.append(piece.text)
        if piece.is_link and piece.text:
            links.append(Link(at, at + len(piece.text), piece.target))
        at += len(piece.text)
    return Passage("".join(texts), tuple(links))


def marked(text: str, entities: Iterable[Fields]) -> Passage:
    """Return the text with the links among its entities. Entities outside the text are ignored."""
    links: list[Link] = []
    pairs = None
    for entity in entities:
        kind = entity.text("type")
        if kind not in {"url", "text_link"}:
            continue
        offset, length = _required(entity, "offset"), _required(entity, "length")
        target = entity.text("url") if kind == "text_link" else None
        if kind == "text_link" and target is None:
            raise refused(entity.place("url"), "is missing")
        if pairs is None:
            # The offset, in units, of each character with two units: its index plus the number of those before it.
            pairs = [found.start() + before for before, found in enumerate(_TWO_UNITS.finditer(text))]
        # Half a character at either edge is left out.
        start, is_half = _character(pairs, offset)
        start += is_half
        end = min(_character(pairs, offset + length)[0], len(text))
        if offset >= 0 and start < end:
            links.append(Link(start, end, target))
    return Passage(text, tuple(links))


def _character(pairs: list[int], unit: int) -> tuple[int, bool]:
    """Return the index of the character that contains the unit, and whether the unit is its second one."""
    before = bisect_left(pairs, unit)
    return unit - before, before > 0 and pairs[before - 1] == unit - 1


def _required(entity: Fields, name: str) -> int:
    number = entity.number(name)
    if number is None:
        raise refused(entity.place(name), "is missing")
    return number
