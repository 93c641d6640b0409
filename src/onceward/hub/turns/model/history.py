"""Turns for operators: the newest ones of all sessions, the turns that replaced each other, and the calls of a group.

Every query reads a bounded number of rows through an index.
"""

from __future__ import annotations

import re

from onceward.hub.db.engine import Transaction
from onceward.hub.db.page import RowPage, page_of, parse_cursor
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.turns.model.turn import COLUMNS, ToolCall, Turn, find_turn, group_of, read_tool_call, read_turn

# Rows that a list of one principal's turns searches, the newest first.
SEARCHED_MAX = 10_000
# The most turns that are followed in one group.
GROUP_TURNS_MAX = 100

_CURSOR = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_LATEST = RawStatement("SELECT coalesce(max(seq), 0) FROM turns")
_NEWEST = RawStatement(f"""
    SELECT {COLUMNS} FROM turns WHERE turns.seq < :before AND turns.seq > :from AND (turns.principal = :principal OR :all)
    ORDER BY turns.seq DESC LIMIT :limit
""")  # noqa: S608  # our own column names
_CALLS = RawStatement(f"""
    SELECT {", ".join(ToolCall.__slots__)} FROM turn_tools WHERE turn_group_id = :group AND key = :key ORDER BY seq DESC
""")  # noqa: S608


def newest_turns(tx: Transaction, limit: int, after: str = "", principal: str | None = None) -> RowPage[Turn]:
    """Return a page of turns, the newest first.

    Args:
        tx: A transaction of the hub's database.
        limit: The most turns to return.
        after: The cursor of the previous page.
        principal: Only turns of this principal, among the newest 10,000; None for all.

    Returns:
        The page.

    Raises:
        InvalidInput: The cursor is not valid.
    """
    latest = int(_LATEST.rows(tx)[0][0])
    before = int(parse_cursor(after, _CURSOR)[0]) if after else latest + 1
    oldest = 0 if principal is None else max(0, latest - SEARCHED_MAX)
    values = {"before": before, "from": oldest, "principal": principal or "", "all": principal is None}
    rows = [read_turn(row) for row in _NEWEST.rows(tx, {**values, "limit": limit + 1})]
    return page_of(rows, limit, lambda turn: str(turn.seq))


def turns_of_group(tx: Transaction, turn: Turn) -> list[Turn]:
    """Return the turns of a group that replaced each other, the first one first.

    Args:
        tx: A transaction of the hub's database.
        turn: Any turn of the group.

    Returns:
        The turns, with the turn itself among them.
    """
    first_id = f"turn_{turn.turn_group_id.removeprefix('grp_')}"
    one = find_turn(tx, first_id) if group_of(first_id) == turn.turn_group_id else None
    one = turn if one is None or one.principal != turn.principal else one
    turns = [one]
    while one.superseded_by is not None and len(turns) < GROUP_TURNS_MAX:
        following = find_turn(tx, one.superseded_by)
        if following is None:
            break
        turns.append(following)
        one = following
    if all(one.id != turn.id for one in turns):
        # A retry after a failure begins a turn of the same group that no other turn names.
        turns.append(turn)
    return turns


def calls_with_key(tx: Transaction, turn_group_id: str, key: str) -> list[ToolCall]:
    """Return the recorded tool calls of a group with this key, the newest first.

    Args:
        tx: A transaction of the hub's database.
        turn_group_id: The group.
        key: The idempotency key of the call.

    Returns:
        The calls.
    """
    return [read_tool_call(row) for row in _CALLS.rows(tx, {"group": turn_group_id, "key": key})]
