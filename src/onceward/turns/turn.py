"""A turn: the messages of one beat, and what became of them. Its row is the truth; this is how it is read.

accumulating   waits for more messages of its burst, or for the turns before it
processing     a brain works on it
committing     likewise, and it can be superseded no more: its commit point is reached
complete       it has its one response
superseded     another turn of the same group has taken its messages over
failed         it was tried as often as it may be; the same request again makes a new turn of the same group
"""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.db.clock import time_text
from onceward.db.engine import Transaction
from onceward.errors import NotFound

Clock: TypeAlias = Callable[[], datetime.datetime]


class State(enum.StrEnum):
    """The wire words of a turn's state."""

    ACCUMULATING = "accumulating"
    PROCESSING = "processing"
    COMMITTING = "committing"
    COMPLETE = "complete"
    SUPERSEDED = "superseded"
    FAILED = "failed"


UNFINISHED = frozenset({State.ACCUMULATING, State.PROCESSING, State.COMMITTING})
RUNNING = frozenset({State.PROCESSING, State.COMMITTING})


@dataclass(frozen=True, slots=True)
class Turn:
    """A row as it was read. `epoch` fences: whoever works under another one works for nobody.

    `accumulate_until` is the moment before which no attempt begins. `attempts` counts those that began and `failures`
    those that ended with an exception of the brain.
    """

    seq: int
    id: str
    turn_group_id: str
    principal: str
    tenant_id: str
    agent_id: str
    customer_id: str
    channel: str
    session_key: str
    state: State
    epoch: int
    commit_point: bool
    effects_started: int
    attempts: int
    failures: int
    accumulate_until: str
    response: str | None
    failure: str | None
    superseded_by: str | None
    reason: str | None
    created_at: str
    updated_at: str
    completed_at: str | None
    delivered_at: str | None

    @property
    def has_past(self) -> bool:
        """Whether anything of its group may have run before: an earlier epoch, or a turn whose group it shares."""
        return self.epoch > 1 or self.turn_group_id != group_of(self.id)

    @property
    def answer(self) -> Json:
        """The response as the brain gave it; None when there is none."""
        found: Json = None if self.response is None else json.loads(self.response)
        return found


@dataclass(frozen=True, slots=True)
class Standing:
    """The part of a turn that somebody who waits for its end has to know."""

    state: State
    superseded_by: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it is stored, in the order of arrival."""

    seq: int
    message_id: str
    content: str
    metadata: dict[str, Json]
    created_at: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a turn that was allowed to have an effect.

    `generation` counts how often what was done under its key had been taken back before.
    """

    seq: int
    turn_id: str
    epoch: int
    tool: str
    key: str
    generation: int
    arguments: dict[str, Json]
    effect: str
    status: str
    receipt: Json
    created_at: str
    updated_at: str


COLUMNS = ", ".join(f"turns.{name}" for name in Turn.__slots__)
# What belongs to the same session as :principal, :tenant_id and :session_key.
OF_SESSION = "turns.principal = :principal AND turns.tenant_id = :tenant_id AND turns.session_key = :session_key"

_GET = text(f"SELECT {COLUMNS} FROM turns WHERE turns.id = :id")  # noqa: S608  # our own column names
_STANDING = text("SELECT state, superseded_by FROM turns WHERE id = :id")
_MESSAGES = text("""
    SELECT seq, message_id, content, metadata, created_at FROM turn_messages WHERE turn_id = :id ORDER BY seq
""")
# As `message_bytes` counts. SQLite has octet_length only since 3.43.
_SIZE = """
    SELECT count(*), coalesce(sum({content} + CASE WHEN metadata = '{{}}' THEN 0 ELSE {metadata} END), 0)
    FROM turn_messages WHERE turn_id = :id
"""
_SIZE_SQLITE = text(_SIZE.format(content="length(CAST(content AS blob))", metadata="length(CAST(metadata AS blob))"))
_SIZE_POSTGRES = text(_SIZE.format(content="octet_length(content)", metadata="octet_length(metadata)"))
_CALLS = f"SELECT {', '.join(ToolCall.__slots__)} FROM turn_tools"  # noqa: S608  # our own column names
_TOOLS = text(f"{_CALLS} WHERE turn_id = :id ORDER BY seq")
# The latest first: they may rest on the earlier ones.
_TO_UNDO = text(f"""
    {_CALLS} WHERE turn_group_id = :group AND undo_wanted AND status NOT IN ('undone', 'failed') ORDER BY seq DESC
""")


def read_turn(row: Any) -> Turn:
    """A turn from a row of `COLUMNS`. SQLite has numbers for truth values."""
    turn = Turn(*row)
    return replace(turn, state=State(turn.state), commit_point=bool(turn.commit_point))


def find_turn(tx: Transaction, turn_id: str) -> Turn | None:
    """The turn, whoever's it is: for those who run turns."""
    row = tx.execute(_GET, {"id": turn_id}).one_or_none()
    return None if row is None else read_turn(row)


def get_turn(tx: Transaction, principal: str, turn_id: str) -> Turn:
    """The principal's own turn; `NotFound` also for one of somebody else."""
    turn = find_turn(tx, turn_id)
    if turn is None or turn.principal != principal:
        raise NotFound(f"there is no turn {turn_id!r}")
    return turn


def standing_of(tx: Transaction, turn_id: str) -> Standing:
    """Where the turn stands, whoever's it is."""
    row = tx.execute(_STANDING, {"id": turn_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no turn {turn_id!r}")
    return Standing(State(row.state), row.superseded_by)


def messages_of(tx: Transaction, turn: Turn) -> list[Message]:
    """The messages that the turn carries now, in the order of arrival."""
    rows = tx.execute(_MESSAGES, {"id": turn.id})
    return [Message(row[0], row[1], row[2], json.loads(row[3]), row[4]) for row in rows]


def size_of(tx: Transaction, turn: Turn) -> tuple[int, int]:
    """How many messages the turn carries now, and how many bytes they count."""
    messages, size = tx.execute(_SIZE_SQLITE if tx.dialect.name == "sqlite" else _SIZE_POSTGRES, {"id": turn.id}).one()
    return int(messages), int(size)


def tools_of(tx: Transaction, turn: Turn) -> list[ToolCall]:
    """The tool calls of the turn that were allowed to have an effect, in the order of their beginning."""
    return [_tool_call(row) for row in tx.execute(_TOOLS, {"id": turn.id})]


def calls_to_undo(tx: Transaction, turn: Turn) -> list[ToolCall]:
    """What superseded runs of the turn's group did that is to be taken back, the latest first."""
    return [_tool_call(row) for row in tx.execute(_TO_UNDO, {"group": turn.turn_group_id})]


def _tool_call(row: Any) -> ToolCall:
    call = ToolCall(*row)
    receipt = None if row.receipt is None else json.loads(row.receipt)
    return replace(call, arguments=json.loads(row.arguments), receipt=receipt)


def group_of(turn_id: str) -> str:
    """The group that a turn founds."""
    return f"grp_{turn_id.partition('_')[2]}"


def now_utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def later(moment: datetime.datetime, seconds: float) -> str:
    """The text of a moment so many seconds after this one."""
    return time_text(moment + datetime.timedelta(seconds=seconds))
