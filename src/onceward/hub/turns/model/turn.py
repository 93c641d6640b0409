"""Turns: the messages of one beat and their result, as read from the database. The row is the source of truth.

accumulating   waits for more messages of its burst, or for older turns of its session
processing     a brain works on it
committing     a brain works on it, and it has reached its commit point: it can no longer be superseded
complete       it has its one response
superseded     another turn of the same group has taken over its messages
failed         all its attempts failed; the same request, sent again, starts a new turn of the same group
"""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from onceward.core.canonical import Json
from onceward.errors import NotFound
from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import time_text
from onceward.hub.turns.model.message import UserMessage

Clock: TypeAlias = Callable[[], datetime.datetime]


class State(enum.StrEnum):
    """State of a turn, as it is stored and sent to clients."""

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
    """A turn as it was read from its row.

    Attributes:
        seq: Orders the turns of a session.
        id: The id, `turn_…`.
        turn_group_id: The group: all turns that replaced each other share it.
        principal: The caller to whom the turn belongs.
        tenant_id: The principal's tenant.
        agent_id: The agent that answers.
        customer_id: The customer who wrote the messages.
        channel: The channel the messages came from.
        session_key: The session.
        state: The state.
        epoch: The number of the current run. It is a fencing token: a run with another epoch can change nothing.
        commit_point: Whether the turn can no longer be superseded.
        effects_started: The number of effects that were allowed to start.
        attempts: The number of attempts that were started.
        failures: The number of attempts that ended with an exception.
        accumulate_until: The time before which no attempt starts.
        response: The response as JSON text, or None.
        failure: The message of the last failure, or None.
        superseded_by: The id of the turn that took over the messages, or None.
        reason: The reason for a decision that concerns this turn, or None.
        created_at: The time at which the turn was created.
        updated_at: The time of the last change.
        completed_at: The time at which the turn was complete, superseded or failed, or None.
        delivered_at: The time at which the response was delivered, or None.
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
        """True if its group may have run before: it had an earlier epoch, or it joined the group of another turn."""
        return self.epoch > 1 or self.turn_group_id != group_of(self.id)

    @property
    def answer(self) -> Json:
        """The response as the brain returned it; None if there is none yet."""
        found: Json = None if self.response is None else json.loads(self.response)
        return found


@dataclass(frozen=True, slots=True)
class TurnStatus:
    """The part of a turn that a caller waiting for its end needs."""

    state: State
    superseded_by: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A stored message of a turn.

    Attributes:
        seq: Orders messages by arrival.
        message_id: The channel's id, or one that the intake made.
        content: The text.
        metadata: JSON values that belong to the message.
        created_at: The time at which it was stored.
    """

    seq: int
    message_id: str
    content: str
    metadata: dict[str, Json]
    created_at: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a turn that was allowed to have an effect.

    Attributes:
        seq: Orders the calls by their start.
        turn_id: The turn that made the call.
        epoch: The epoch of the run that made the call.
        tool: The name of the tool.
        key: The idempotency key of the call.
        generation: The number of times that a call under this key had been undone before.
        arguments: The arguments.
        effect: The effect class of the tool.
        status: `started`, `done`, `unknown`, `failed` or `undone`.
        receipt: The receipt of the effect, or None.
        created_at: The time at which the call started.
        updated_at: The time of the last change.
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


_STATE, _COMMIT_POINT = (Turn.__slots__.index(name) for name in ("state", "commit_point"))
COLUMNS = ", ".join(f"turns.{name}" for name in Turn.__slots__)
# Rows of the session :principal, :tenant_id, :session_key.
OF_SESSION = "turns.principal = :principal AND turns.tenant_id = :tenant_id AND turns.session_key = :session_key"

_GET = RawStatement(f"SELECT {COLUMNS} FROM turns WHERE turns.id = :id")  # noqa: S608  # our own column names
_STATUS = RawStatement("SELECT state, superseded_by FROM turns WHERE id = :id")
_MESSAGES = RawStatement("""
    SELECT seq, message_id, content, metadata, created_at FROM turn_messages WHERE turn_id = :id ORDER BY seq
""")
# Counts like `message_bytes`. SQLite has octet_length only since 3.43.
_SIZE = """
    SELECT count(*), coalesce(sum({content} + CASE WHEN metadata = '{{}}' THEN 0 ELSE {metadata} END), 0)
    FROM turn_messages WHERE turn_id = :id
"""
_SIZE_SQLITE = RawStatement(
    _SIZE.format(content="length(CAST(content AS blob))", metadata="length(CAST(metadata AS blob))")
)
_SIZE_POSTGRES = RawStatement(_SIZE.format(content="octet_length(content)", metadata="octet_length(metadata)"))
_CALLS = f"SELECT {', '.join(ToolCall.__slots__)} FROM turn_tools"  # noqa: S608  # our own column names
_TOOLS = RawStatement(f"{_CALLS} WHERE turn_id = :id ORDER BY seq")
# Newest first: a later call may depend on an earlier one.
_TO_UNDO = RawStatement(f"""
    {_CALLS} WHERE turn_group_id = :group AND undo_wanted AND status NOT IN ('undone', 'failed') ORDER BY seq DESC
""")


def read_turn(row: Any) -> Turn:
    """Return the turn in a row of `COLUMNS`. SQLite stores booleans as numbers."""
    values = list(row)
    values[_STATE], values[_COMMIT_POINT] = State(values[_STATE]), bool(values[_COMMIT_POINT])
    return Turn(*values)


def find_turn(tx: Transaction, turn_id: str) -> Turn | None:
    """Return the turn of any principal, or None. For runners, which serve all principals."""
    rows = _GET.rows(tx, {"id": turn_id})
    return read_turn(rows[0]) if rows else None


def get_turn(tx: Transaction, principal: str, turn_id: str) -> Turn:
    """Return a turn of this principal.

    Args:
        tx: A transaction of the hub's database.
        principal: The turn's principal.
        turn_id: The turn.

    Returns:
        The turn as it is stored.

    Raises:
        errors.NotFound: The turn does not exist or belongs to another principal.
    """
    turn = find_turn(tx, turn_id)
    if turn is None or turn.principal != principal:
        raise NotFound(f"turn {turn_id!r} does not exist")
    return turn


def read_turn_status(tx: Transaction, turn_id: str) -> TurnStatus:
    """Return the status of the turn of any principal."""
    rows = _STATUS.rows(tx, {"id": turn_id})
    if not rows:
        raise NotFound(f"turn {turn_id!r} does not exist")
    state, superseded_by = rows[0]
    return TurnStatus(State(state), superseded_by)


def messages_of(tx: Transaction, turn: Turn) -> list[Message]:
    """Return the messages that the turn has now, in the order of arrival.

    Args:
        tx: A transaction of the hub's database.
        turn: The turn.

    Returns:
        The messages. A turn that was superseded or retried has none: they moved to the turn that replaced it.
    """
    rows = _MESSAGES.rows(tx, {"id": turn.id})
    return [Message(row[0], row[1], row[2], json.loads(row[3]), row[4]) for row in rows]


def size_of(tx: Transaction, turn: Turn) -> tuple[int, int]:
    """Return the number of messages that the turn has now, and their size as `message_bytes` counts it."""
    statement = _SIZE_SQLITE if tx.dialect.name == "sqlite" else _SIZE_POSTGRES
    messages, size = statement.rows(tx, {"id": turn.id})[0]
    return int(messages), int(size)


def tools_of(tx: Transaction, turn: Turn) -> list[ToolCall]:
    """Return the turn's tool calls that were allowed to have an effect, in the order of their start.

    Args:
        tx: A transaction of the hub's database.
        turn: The turn.

    Returns:
        The calls. Replayed calls are not among them, because they started no effect.
    """
    return [read_tool_call(row) for row in _TOOLS.rows(tx, {"id": turn.id})]


def calls_to_undo(tx: Transaction, turn: Turn) -> list[ToolCall]:
    """Return the tool calls of superseded runs of the turn's group that have to be undone, newest first."""
    return [read_tool_call(row) for row in _TO_UNDO.rows(tx, {"group": turn.turn_group_id})]


def read_tool_call(row: Any) -> ToolCall:
    """Return the tool call in a row with the columns of `ToolCall`."""
    call = ToolCall(*row)
    arguments, receipt = cast("str", call.arguments), cast("str | None", call.receipt)
    return replace(call, arguments=json.loads(arguments), receipt=None if receipt is None else json.loads(receipt))


def group_of(turn_id: str) -> str:
    """Return the id of the group that starts with this turn."""
    return f"grp_{turn_id.partition('_')[2]}"


def order_of(session: Turn | UserMessage) -> tuple[str, ...]:
    """Return the place of a session's locks among those of other works, for the writer."""
    return ("session", session.principal, session.tenant_id, session.session_key or "")


def now_utc() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def later(at: datetime.datetime, seconds: float) -> str:
    """Return the time that is `seconds` after `at`, as text."""
    return time_text(at + datetime.timedelta(seconds=seconds))
