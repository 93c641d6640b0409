"""Pages of a list: rows behind a cursor (keyset pagination), and the cursor of the next page.

A cursor names a place in the order of the list, not a row. It stays valid when the row is deleted, and rows that others
insert meanwhile neither move nor repeat the rows behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from onceward.core.text import refused
from onceward.errors import InvalidInput

T = TypeVar("T")

LIMIT_DEFAULT = 100
LIMIT_MAX = 500


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items in the order of the list. `next_after` is the cursor of the next page, None after the last one."""

    items: list[T]
    next_after: str | None

    @property
    def has_more(self) -> bool:
        return self.next_after is not None


def page_of(found: list[T], limit: int, cursor: Callable[[T], str]) -> Page[T]:
    """The page of rows that were selected with a limit of one more than `limit`."""
    items = found[:limit]
    return Page(items, cursor(items[-1]) if len(found) > limit else None)


def place_in(after: str, form: re.Pattern[str]) -> re.Match[str]:
    """The parts of a cursor; `InvalidInput` for text that no page gave."""
    place = form.fullmatch(after)
    if place is None:
        raise not_a_cursor()
    return place


def not_a_cursor() -> InvalidInput:
    return refused("after", "is not the next_after of an earlier page")
