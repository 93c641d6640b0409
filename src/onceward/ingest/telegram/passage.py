"""A message's text with the stretches of it that lead elsewhere.

Telegram says where a link stands by UTF-16 code units, its export by cutting the text into pieces. Here it is said by
characters, whichever form the message came in.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from onceward.core.text import refused
from onceward.ingest.fields import Fields

_LAST_OF_ONE_UNIT = "\uffff"


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
        if piece.is_link:
            links.append(Link(at, at + len(piece.text), piece.target))
        at += len(piece.text)
    return Passage("".join(texts), tuple(links))


def marked(text: str, entities: Iterable[Fields]) -> Passage:
    """The text with the links among its entities. One that does not lie in the text marks nothing there."""
    links: list[Link] = []
    starts: Sequence[int] = ()
    for entity in entities:
        kind = entity.text("type")
        if kind not in {"url", "text_link"}:
            continue
        offset, length = _required(entity, "offset"), _required(entity, "length")
        target = entity.text("url") if kind == "text_link" else None
        if kind == "text_link" and target is None:
            raise refused(entity.place("url"), "is missing")
        starts = starts or _unit_of_each_character(text)
        # Half a character at either edge is left out: a mark covers whole ones.
        start, end = bisect_left(starts, offset), bisect_right(starts, offset + length) - 1
        if offset >= 0 and start < end:
            links.append(Link(start, end, target))
    return Passage(text, tuple(links))


def _unit_of_each_character(text: str) -> Sequence[int]:
    """The UTF-16 code unit at which each character begins, and the one behind the last."""
    if text.isascii() or max(text) <= _LAST_OF_ONE_UNIT:
        return range(len(text) + 1)
    return list(accumulate((1 + (character > _LAST_OF_ONE_UNIT) for character in text), initial=0))


def _required(entity: Fields, name: str) -> int:
    number = entity.number(name)
    if number is None:
        raise refused(entity.place(name), "is missing")
    return number
