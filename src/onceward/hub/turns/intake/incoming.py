"""Incoming message: a validated message with its hashes, and the indexed read that tells whether it is known.

A message is a duplicate
    by its message_id       always
    by its idempotency key  until `api_ttl_seconds` after its turn has completed
    by its content          for `content_window_seconds`, if it has neither of the two
The read takes no lock. A message that it finds is committed, so a duplicate needs no write transaction. A message that it
does not find may be stored by another process at the same time: the transaction that stores the message reads again.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.hub.db.lookup import Lookup
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import time_text
from onceward.hub.turns.model.message import UserMessage, window_seconds
from onceward.hub.turns.model.turn import COLUMNS, State, Turn, later, read_turn
from onceward.tools import keys
from onceward.tools.fingerprint import meaningful

if TYPE_CHECKING:
    from onceward.hub.turns.intake.receive import Intake

# ruff: noqa: S608  # The statements are built from constants of this module.

# Whether the session has an unfinished turn, then the messages with the same key, id and content, with their turns.
# There is always a row. Without a key, id or hash, its index is not searched: as long as PostgreSQL has no statistics of a
# new table, it may search another index, and read all messages of the principal.
_MESSAGE = "turn_messages.message_id, turn_messages.fingerprint, turn_messages.turn_id"
_SENDER = "turn_messages.principal = {principal} AND turn_messages.tenant_id = {tenant_id}"
_FIND = f"""
    SELECT session.busy, found.place, found.message_id, found.fingerprint, {COLUMNS}
    FROM (SELECT (
        SELECT 1 FROM turns
        WHERE turns.principal = {{principal}} AND turns.tenant_id = {{tenant_id}}
          AND turns.session_key = {{session_key}} AND turns.state IN ('accumulating', 'processing', 'committing')
        LIMIT 1
    ) IS NOT NULL AS busy) AS session
    LEFT JOIN (
        SELECT 1 AS place, {_MESSAGE} FROM turn_messages
        WHERE CAST({{idempotency_key}} AS text) IS NOT NULL
          AND {_SENDER} AND turn_messages.idempotency_key = {{idempotency_key}}
        UNION ALL
        SELECT 2 AS place, {_MESSAGE} FROM turn_messages
        WHERE CAST({{message_id}} AS text) IS NOT NULL
          AND {_SENDER} AND turn_messages.session_key = {{session_key}} AND turn_messages.message_id = {{message_id}}
        UNION ALL
        SELECT 3 AS place, same.message_id, same.fingerprint, same.turn_id FROM (
            SELECT {_MESSAGE} FROM turn_messages
            WHERE CAST({{content_hash}} AS text) IS NOT NULL
              AND {_SENDER} AND turn_messages.session_key = {{session_key}}
              AND turn_messages.content_hash = {{content_hash}} AND turn_messages.created_at > {{since}}
            ORDER BY turn_messages.created_at DESC LIMIT 1
        ) AS same
    ) AS found ON true
    LEFT JOIN turns ON turns.id = found.turn_id
"""
_ASKED = ("principal", "tenant_id", "session_key", "idempotency_key", "message_id", "content_hash", "since")
FIND = Lookup(
    RawStatement(_FIND.format(**{name: f":{name}" for name in _ASKED})),
    f"""
    SELECT asked.place, answer.*
    FROM json_array_elements(CAST(:asked AS json)) WITH ORDINALITY AS asked(row, place)
    CROSS JOIN LATERAL ({_FIND.format(**{name: f"(asked.row ->> '{name}')" for name in _ASKED})}) AS answer
    """,
)
_BY_KEY, _BY_ID, _BY_CONTENT = 1, 2, 3


class Verdict(enum.Enum):
    """Judgement of a message by the messages that are stored."""

    NEW = enum.auto()
    DUPLICATE = enum.auto()  # its turn has it, or has answered it
    MISMATCH = enum.auto()  # its key belongs to another message
    RETRY = enum.auto()  # its turn has failed, and is to be retried
    KEY_EXPIRED = enum.auto()  # it is new, and its key belongs to an old message


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of the read: the verdict, the known message's id and turn, and whether the session has unfinished turns."""

    verdict: Verdict
    busy: bool
    message_id: str = ""
    turn: Turn | None = None


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message, which must be `ready()`, at the time at which it was received.

    Attributes:
        message: The message.
        intake: Limits and times.
        received_at: The time.
        now: The time as text.
        metadata: The metadata as JSON text.
        key: The idempotency key, or None if it is not checked.
        content_hash: The hash by which a message with neither key nor id is recognised, or None.
    """

    message: UserMessage
    intake: Intake
    received_at: datetime.datetime
    now: str
    metadata: str
    key: str | None
    content_hash: str | None

    @classmethod
    def of(
        cls,
        message: UserMessage,
        intake: Intake,
        received_at: datetime.datetime,
        meaningful_metadata: Collection[str] | None = None,
    ) -> Incoming:
        """Derive the values. `meaningful_metadata` is the brain's."""
        content_hash = None
        if intake.checks and intake.auto_generate_keys and not message.idempotency_key and not message.message_id:
            content_hash = keys.content_key(
                message.tenant_id,
                message.customer_id,
                message.session_key or "",
                [message.content],
                meaningful(message.metadata, meaningful_metadata),
            )
        return cls(
            message,
            intake,
            received_at,
            time_text(received_at),
            compact(cast("Json", dict(message.metadata))),
            message.idempotency_key if intake.checks else None,
            content_hash,
        )

    @property
    def session(self) -> dict[str, str]:
        message = self.message
        return {
            "principal": message.principal,
            "tenant_id": message.tenant_id,
            "session_key": message.session_key or "",
        }

    @property
    def until(self) -> str:
        """The end of the accumulation of a turn that gets this message."""
        window = window_seconds(self.message.channel, self.intake.windows)
        return later(self.received_at, window) if window else self.now

    @property
    def since(self) -> str:
        """The time after which a message with the same content is a duplicate."""
        return later(self.received_at, -self.intake.content_window_seconds)

    @property
    def question(self) -> dict[str, str | None]:
        """The parameters of `FIND`."""
        return {
            **self.session,
            "idempotency_key": self.key,
            "message_id": self.message.message_id,
            "content_hash": self.content_hash,
            "since": self.since,
        }

    def finding(self, rows: Sequence[Sequence[Any]]) -> Finding:
        """Judge the rows of `FIND`."""
        busy = bool(rows[0][0])
        known = {row[1]: (row[2], row[3], read_turn(row[4:])) for row in rows if row[1] is not None}
        if _BY_KEY in known:
            message_id, fingerprint, turn = known[_BY_KEY]
            same = fingerprint == self.message.fingerprint
            ended = turn.completed_at
            expired = ended is not None and ended <= later(self.received_at, -self.intake.api_ttl_seconds)
            if turn.state is State.FAILED and same:
                return Finding(Verdict.RETRY, busy, message_id, turn)
            if turn.state is not State.FAILED and not expired:
                return Finding(Verdict.DUPLICATE if same else Verdict.MISMATCH, busy, message_id, turn)
            if _BY_ID not in known:
                return Finding(Verdict.KEY_EXPIRED, busy)
        for place in (_BY_ID, _BY_CONTENT):
            if place in known:
                message_id, _, turn = known[place]
                verdict = Verdict.RETRY if turn.state is State.FAILED else Verdict.DUPLICATE
                return Finding(verdict, busy, message_id, turn)
        return Finding(Verdict.NEW, busy)
