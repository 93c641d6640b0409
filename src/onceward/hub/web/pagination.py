"""Pagination over HTTP: the query parameters of every list route, and the two fields beside the items."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from onceward.hub.db.page import LIMIT_DEFAULT, LIMIT_MAX, RowPage

__all__ = ["LIMIT_DEFAULT", "After", "Limit", "PageShown", "paged"]

# Longer than any cursor. The longest is the cursor of a claim, which contains a scope and a key.
_CURSOR_CHARACTERS_MAX = 4096

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="The maximum number of items.")]
After = Annotated[
    str,
    Query(
        max_length=_CURSOR_CHARACTERS_MAX,
        description="The `next_after` of the previous page. Default: the first page.",
    ),
]


class PageShown(BaseModel):
    """The fields that every list has beside its items."""

    next_after: str | None = Field(
        description="The cursor of the next page: pass it as `after`. Null on the last page."
    )
    has_more: bool = Field(description="Whether there is a next page.")


def paged(page: RowPage[Any]) -> dict[str, object]:
    return {"next_after": page.next_after, "has_more": page.has_more}
