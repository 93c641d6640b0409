"""A message's text with the stretches of it that lead elsewhere.

Telegram says where a link stands by UTF-16 code units, its export by cutting the text into pieces. Here it is said by
characters, whichever form the message came in.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from onceward.core.text import refused
from onceward.ingest.fields import Fields

# What UTF-16 writes with two units.
_TWO_UNITS = re.compile("[\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Link:
    """A stretch that Telegram shows as a link. `target` is where it leads, None if that is what is written there."""

    start: int
    end: int
    target: str | None


@dataclass(frozen=True, slots=True)
class Passage:
    text: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text that was sent cut into pieces."""

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
    """The text with the links among its entities. One that does not lie in the text marks nothing there."""
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
            # Where each that has two begins, counted in units: its number, and one more for each of them before it.
            pairs = [found.start() + before for before, found in enumerate(_TWO_UNITS.finditer(text))]
        # Half a character at either edge is left out: a mark covers whole ones.
        start, is_half = _character(pairs, offset)
        start += is_half
        end = min(_character(pairs, offset + length)[0], len(text))
        if offset >= 0 and start < end:
            links.append(Link(start, end, target))
    return Passage(text, tuple(links))


def _character(pairs: list[int], unit: int) -> tuple[int, bool]:
    """The number of the character that has the unit, and whether it is the second of its two."""
    before = bisect_left(pairs, unit)
    return unit - before, before > 0 and pairs[before - 1] == unit - 1


def _required(entity: Fields, name: str) -> int:
    number = entity.number(name)
    if number is None:
        raise refused(entity.place(name), "is missing")
    return number
