"""Plain text of a rich message, Telegram's format for documents with headings, lists and tables.

This collects text fields by name, at any depth. Blocks of unknown kinds are read as far as their fields are known.
"""

from __future__ import annotations

from collections.abc import Iterator

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.normalize.fields import Fields, storable
from onceward.hub.ingest.telegram.linked_text import Passage, Piece, joined

# The nesting limit of the hub's JSON bodies; real documents are never nested this deeply.
_DEPTH_MAX = 64
# Fields with visible text, in the order in which a reader sees them.
_INLINE = ("summary", "title", "text", "expression")
_NESTED = ("blocks", "items", "cells", "rows")
_BELOW = ("caption", "credit")


def rich_passage(message: Fields, name: str) -> Passage:
    """Return the text of the rich message in this field, one line for each block."""
    value = message.within(name)
    passage = joined(_of_blocks(list(value.items("blocks")), value.place("blocks"), 0))
    return Passage(passage.text.rstrip("\n"), passage.links)


def _of_blocks(value: Json, place: str, depth: int) -> Iterator[Piece]:
    if depth > _DEPTH_MAX:
        raise refused(place, f"is nested deeper than {_DEPTH_MAX} levels")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _of_blocks(item, f"{place}[{index}]", depth + 1)
    elif isinstance(value, dict):
        for name in _INLINE:
            yield from _line(value.get(name), f"{place}.{name}", depth)
        for name in _NESTED:
            yield from _of_blocks(value.get(name), f"{place}.{name}", depth + 1)
        for name in _BELOW:
            caption = value.get(name)
            if isinstance(caption, dict) and "type" not in caption:
                yield from _of_blocks(caption, f"{place}.{name}", depth + 1)
            else:
                yield from _line(caption, f"{place}.{name}", depth)


def _line(value: Json, place: str, depth: int) -> Iterator[Piece]:
    pieces = list(_of_text(value, place, depth, None))
    if pieces:
        yield from pieces
        yield Piece("\n")


def _of_text(value: Json, place: str, depth: int, target: str | None) -> Iterator[Piece]:
    """Yield the pieces of a rich text: a string, a list of rich texts, or an object with a style or link around one."""
    if depth > _DEPTH_MAX:
        raise refused(place, f"is nested deeper than {_DEPTH_MAX} levels")
    if isinstance(value, str):
        yield Piece(storable(place, value), is_link=target is not None, target=target)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _of_text(item, f"{place}[{index}]", depth + 1, target)
    elif isinstance(value, dict):
        fields = Fields(value, place)
        for name in ("text", "expression", "alternative_text"):
            if name in value:
                inner = fields.text("url") if value.get("type") == "url" else None
                yield from _of_text(value[name], fields.place(name), depth + 1, inner or target)
                return
