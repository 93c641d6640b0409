"""Keyset pagination: the rows after a cursor, and the cursor of the next page.

A cursor is a position in the order of the list, not a row. It stays valid if the row is deleted, and rows inserted
between two pages neither shift nor repeat the rows after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from onceward.core.json_text import refused
from onceward.errors import InvalidInput

T = TypeVar("T")

LIMIT_DEFAULT = 100
LIMIT_MAX = 500


@dataclass(frozen=True, slots=True)
class RowPage(Generic[T]):
    """A page of items in the order of the list. `next_after` is the cursor of the next page, or None on the last."""

    items: list[T]
    next_after: str | None

    @property
    def has_more(self) -> bool:
        return self.next_after is not None


def page_of(found: list[T], limit: int, cursor: Callable[[T], str]) -> RowPage[T]:
    """Build a page from rows that were selected with a limit of `limit + 1`."""
    items = found[:limit]
    return RowPage(items, cursor(items[-1]) if len(found) > limit else None)


def parse_cursor(after: str, form: re.Pattern[str]) -> re.Match[str]:
    """Parse a cursor, or raise `InvalidInput` for text that is not a cursor."""
    place = form.fullmatch(after)
    if place is None:
        raise not_a_cursor()
    return place


def not_a_cursor() -> InvalidInput:
    return refused("after", "is not the next_after of an earlier page")
