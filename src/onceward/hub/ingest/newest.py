"""Lists of stored entries for operators: the newest ones, one entry, and how many there are, each within a bound."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import RowPage, page_of, parse_cursor
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.ingest.entries.columns import COLUMNS, POLICY_ID, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.schema import EntrySchema

# Entries that a filter searches, the newest first: it has no index.
SEARCHED_MAX = 10_000
# A count ends here, because both databases count by reading.
COUNT_MAX = 10_000

# Columns of a list. The texts and the metadata may be large.
_LISTED = (
    "entry_id", "id", "created_at", "updated_at", "source", "content_type", "title", "url", POLICY_ID, PRIMARY, SECONDARY,
)  # fmt: skip
_CURSOR = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_LATEST = "SELECT coalesce(max(entry_id), 0) FROM {entries}"
_COUNT = "SELECT count(*) FROM (SELECT 1 FROM {entries} LIMIT :limit) AS counted"
_NEWEST = f"""
    SELECT {", ".join(_LISTED)} FROM {{entries}}
    WHERE entry_id < :before AND entry_id > :oldest
      AND (:source = '' OR lower(trim(source)) = :source)
      AND (:content_type = '' OR lower(trim(content_type)) = :content_type)
    ORDER BY entry_id DESC LIMIT :limit
"""  # noqa: S608  # our own column names
_ONE = f"SELECT {', '.join(COLUMNS)} FROM {{entries}} WHERE entry_id = :entry_id"  # noqa: S608


def newest_entries(
    tx: Transaction, schema: EntrySchema, limit: int, after: str = "", *, source: str = "", content_type: str = ""
) -> RowPage[dict[str, Any]]:
    """Return a page of entries, the newest first.

    Args:
        tx: A transaction of the hub's database.
        schema: The schema.
        limit: The most entries to return.
        after: The cursor of the previous page.
        source: Only entries of this source, among the newest 10,000; compared trimmed and in lower case.
        content_type: The same for the content type.

    Returns:
        The page, without the texts and the metadata.

    Raises:
        InvalidInput: The cursor is not valid.
    """
    latest = int(_statement(schema, _LATEST, is_sqlite=_is_sqlite(tx)).rows(tx)[0][0])
    values = {
        "before": int(parse_cursor(after, _CURSOR)[0]) if after else latest + 1,
        "oldest": max(0, latest - SEARCHED_MAX) if source or content_type else 0,
        "source": source.strip().lower(),
        "content_type": content_type.strip().lower(),
        "limit": limit + 1,
    }
    rows = _statement(schema, _NEWEST, is_sqlite=_is_sqlite(tx)).rows(tx, values)
    found = [dict(zip(_LISTED, row, strict=True)) for row in rows]
    return page_of(found, limit, lambda entry: str(entry["entry_id"]))


def count_entries(tx: Transaction, schema: EntrySchema) -> tuple[int, bool]:
    """Return the number of entries, up to `COUNT_MAX`, and whether there are more."""
    rows = _statement(schema, _COUNT, is_sqlite=_is_sqlite(tx)).rows(tx, {"limit": COUNT_MAX + 1})
    count = int(rows[0][0])
    return min(count, COUNT_MAX), count > COUNT_MAX


def find_entry(tx: Transaction, schema: EntrySchema, entry_id: int) -> dict[str, Any] | None:
    """Return every column of an entry, the metadata as an object; None if it does not exist."""
    rows = _statement(schema, _ONE, is_sqlite=_is_sqlite(tx)).rows(tx, {"entry_id": entry_id})
    if not rows:
        return None
    found = dict(zip(COLUMNS, rows[0], strict=True))
    return {**found, "metadata": json.loads(found["metadata"])}


@functools.cache
def _statement(schema: EntrySchema, statement: str, *, is_sqlite: bool) -> RawStatement:
    return RawStatement(statement.format(entries=schema.table("entries", is_sqlite=is_sqlite)))


def _is_sqlite(tx: Transaction) -> bool:
    return tx.dialect.name == "sqlite"
