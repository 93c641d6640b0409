"""What one transaction does with a message: find it known already, or give it to a turn. Nothing is looked up twice.

A message is known
    by its message_id       always
    by its idempotency key  until `api_ttl_seconds` after its turn was completed
    by its content          for `content_window_seconds`, when it has neither of the two
and then the answer is the turn that carries it. What a failed turn carries is tried again, in a new turn of its group.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, assert_never, cast

from sqlalchemy import text

from onceward.core.canonical import Json
from onceward.core.text import compact
from onceward.db.clock import new_id, time_text
from onceward.db.engine import Transaction
from onceward.errors import TooManyRequests
from onceward.events.log import append
from onceward.turns import keys, moves
from onceward.turns.decision import TURN_FULL, Decision, settled_decision
from onceward.turns.fingerprint import meaningful
from onceward.turns.message import (
    MESSAGE_BYTES_MAX,
    WINDOW_MILLISECONDS,
    UserMessage,
    message_bytes,
    window_seconds,
)
from onceward.turns.turn import Message, State, Turn, find_turn, group_of, later, messages_of, size_of

API_TTL_SECONDS = 300.0
CONTENT_WINDOW_SECONDS = 300.0
# A burst has a handful of messages. What is larger is a client that does not stop.
MESSAGES_MAX = 200
BYTES_MAX = 1024**2
QUEUED_MAX = 20
# A place in the queue is free when the turn that runs is finished.
QUEUE_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """How long what is known, how long each channel waits for more, and how much may come together.

    `checks=False` leaves keys and contents alone; a message_id is known all the same.

    max_message_bytes  of one message, its text and metadata
    max_messages       of one turn, and `max_bytes` of all of them; a turn always takes its first message
    max_queued         turns of one session that wait behind its oldest unfinished one
    """

    api_ttl_seconds: float = API_TTL_SECONDS
    content_window_seconds: float = CONTENT_WINDOW_SECONDS
    auto_generate_keys: bool = True
    checks: bool = True
    windows: Mapping[str, int] = field(default_factory=lambda: WINDOW_MILLISECONDS)
    max_message_bytes: int = MESSAGE_BYTES_MAX
    max_messages: int = MESSAGES_MAX
    max_bytes: int = BYTES_MAX
    max_queued: int = QUEUED_MAX


class Status(enum.StrEnum):
    """What became of a message."""

    NEW = "new"
    PROCESSING = "processing"
    COMPLETE = "complete"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Received:
    """The acknowledgement.

    mismatch      the key was used with another message; nothing was stored
    decision      what was decided about the turn that was not finished; None when there was none, and when the message
                  joined a turn that still waits for more
    duplicate_of  the turn that a message which is known already belongs to
    interrupted   the turn whose run is over because of this message
    closed        the turn that waits for more messages no longer, because it is full
    tries_again   the failed turn whose messages the new one has
    """

    status: Status
    turn: Turn
    message_id: str
    decision: Decision | None = None
    reason: str | None = None
    duplicate_of: str | None = None
    interrupted: str | None = None
    event_id: int | None = None
    tries_again: str | None = None
    closed: str | None = None

    @property
    def turn_id(self) -> str:
        return self.turn.id


@dataclass(frozen=True, slots=True)
class Undecided:
    """Nothing was stored: ask the brain what becomes of this turn, and come again with its answer."""

    turn: Turn
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the brain wants, about the turn that it was asked about, as that turn stood then."""

    turn_id: str
    epoch: int
    wanted: Decision | None

    def is_about(self, turn: Turn) -> bool:
        return (self.turn_id, self.epoch) == (turn.id, turn.epoch)


# For brains that never have one.
NO_OPINION = Opinion("", 0, None)


class Again(Exception):  # not an error: somebody was faster
    """Roll back and begin anew: what refused the message is found then."""


_KNOWN = """
    SELECT message_id, fingerprint, turn_id FROM turn_messages WHERE principal = :principal AND tenant_id = :tenant_id
"""
_BY_ID = text(f"{_KNOWN} AND session_key = :session_key AND message_id = :message_id")
_BY_KEY = text(f"{_KNOWN} AND idempotency_key = :idempotency_key")
_BY_CONTENT = text(f"""
    {_KNOWN} AND session_key = :session_key AND content_hash = :content_hash AND created_at > :since
    ORDER BY created_at DESC LIMIT 1
""")
_FREE = text("""
    UPDATE turn_messages SET idempotency_key = NULL
    WHERE principal = :principal AND tenant_id = :tenant_id AND idempotency_key = :idempotency_key
""")
_STORE = text("""
    INSERT INTO turn_messages (principal, tenant_id, session_key, message_id, turn_id, content, metadata,
                               idempotency_key, fingerprint, content_hash, created_at)
    VALUES (:principal, :tenant_id, :session_key, :message_id, :turn_id, :content, :metadata,
            :idempotency_key, :fingerprint, :content_hash, :created_at)
    ON CONFLICT DO NOTHING
""")


def receive(
    tx: Transaction,
    message: UserMessage,
    intake: Intake,
    now: datetime.datetime,
    opinion: Opinion | None,
    meaningful_metadata: Collection[str] | None = None,
) -> Received | Undecided:
    """Give the message, which is `ready()`, to a turn. Without an opinion the brain has yet to be asked for it.
    `meaningful_metadata` is the brain's.

    `Again` when another session's message has taken the key meanwhile.
    """
    counted = meaningful(message.metadata, meaningful_metadata)
    return _Receiving(tx, message, intake, now, counted).receive(opinion)


class _Receiving:
    """One message in one transaction."""

    def __init__(
        self, tx: Transaction, message: UserMessage, intake: Intake, now: datetime.datetime, counted: Json
    ) -> None:
        self.tx = tx
        self.message = message
        self.intake = intake
        self.moment = now
        self.now = time_text(now)
        self.session = {
            "principal": message.principal,
            "tenant_id": message.tenant_id,
            "session_key": message.session_key or "",
        }
        self.metadata = compact(cast("Json", dict(message.metadata)))
        self.key = message.idempotency_key if intake.checks else None
        self.content_hash = None
        if intake.checks and intake.auto_generate_keys and not message.idempotency_key and not message.message_id:
            self.content_hash = keys.content_key(
                message.tenant_id, message.customer_id, self.session["session_key"], [message.content], counted
            )

    def receive(self, opinion: Opinion | None) -> Received | Undecided:
        moves.lock_session(self.tx, self.session)
        return self._known() or self._new(opinion)

    # What is known already.

    def _known(self) -> Received | None:
        if self.key is not None and (held := self._by_key(self.key)) is not None:
            return held
        found = None
        if self.message.message_id is not None:
            found = self._find(_BY_ID, message_id=self.message.message_id)
        elif self.content_hash is not None:
            since = later(self.moment, -self.intake.content_window_seconds)
            found = self._find(_BY_CONTENT, content_hash=self.content_hash, since=since)
        return None if found is None else self._answer(*found)

    def _by_key(self, key: str) -> Received | None:
        found = self._find(_BY_KEY, idempotency_key=key)
        if found is None:
            return None
        row, turn = found
        same = row.fingerprint == self.message.fingerprint
        expired = turn.completed_at is not None and turn.completed_at <= later(
            self.moment, -self.intake.api_ttl_seconds
        )
        if turn.state is not State.FAILED and not expired:
            return self._answer(row, turn) if same else Received(Status.MISMATCH, turn, row.message_id)
        if turn.state is State.FAILED and same:
            return self._answer(row, turn)
        if self.message.message_id is None or self._find(_BY_ID, message_id=self.message.message_id) is None:
            self.tx.execute(_FREE, {**self.session, "idempotency_key": key})
        return None

    def _find(self, statement: Any, **values: str) -> tuple[Any, Turn] | None:
        row = self.tx.execute(statement, {**self.session, **values}).one_or_none()
        turn = None if row is None else find_turn(self.tx, row.turn_id)
        return None if turn is None else (row, turn)

    def _answer(self, row: Any, turn: Turn) -> Received:
        if turn.state is State.FAILED:
            return self._retry(row.message_id, turn)
        status = Status.COMPLETE if turn.state is State.COMPLETE else Status.PROCESSING
        return Received(status, turn, row.message_id, duplicate_of=turn.id)

    def _retry(self, message_id: str, failed: Turn) -> Received:
        """The failed turn's messages once more; what its tools have done is known by the group that stays the same."""
        busy = moves.unfinished(self.tx, moves.session_of(failed), lock=True)
        self._check_queue(busy)
        reason = f"tries {failed.id} again"
        turn = self._turn(failed, group=failed.turn_group_id, until=self.now, reason=reason, after_epoch=failed.epoch)
        if not moves.replace(self.tx, failed, turn.id):
            raise Again
        moves.hand_over(self.tx, failed, turn.id)
        decision = Decision.QUEUE if busy else None
        return self._told(Received(Status.NEW, turn, message_id, decision, reason, tries_again=failed.id))

    # What is new.

    def _new(self, opinion: Opinion | None) -> Received | Undecided:
        turns = moves.unfinished(self.tx, self.session, lock=True)
        if not turns:
            return self._stored(self._turn(self.message), None, None)
        newest, running = turns[-1], turns[0]
        if newest.state is State.ACCUMULATING and newest.accumulate_until > self.now:
            if self._is_full(newest):
                return self._queued_behind(turns, newest)
            joined = moves.join(self.tx, newest.id, self._until(), self.now)
            if joined is None:
                raise Again
            return self._stored(joined, None, None)
        if self._is_full(running):
            return self._queued_behind(turns, running)
        if opinion is None or (opinion is not NO_OPINION and not opinion.is_about(running)):
            return Undecided(running, tuple(messages_of(self.tx, running)))
        decision, reason = settled_decision(
            opinion.wanted,
            commit_point=running.commit_point,
            effects_started=running.effects_started,
            queued=len(turns) > 1,
        )
        if decision in {Decision.QUEUE, Decision.FORCE_COMPLETE}:
            self._check_queue(turns)
        return self._decided(running, decision, reason)

    def _is_full(self, turn: Turn) -> bool:
        """Whether this message would take the turn over its limits."""
        messages, size = size_of(self.tx, turn)
        size += message_bytes(self.message.content, self.metadata)
        return messages >= self.intake.max_messages or size > self.intake.max_bytes

    def _queued_behind(self, turns: list[Turn], full: Turn) -> Received:
        """The full turn waits for nothing more; the message gets a turn of its own."""
        self._check_queue(turns)
        closed = full.id if moves.close(self.tx, full, self.now) else None
        received = self._stored(self._turn(self.message, reason=TURN_FULL), Decision.QUEUE, TURN_FULL)
        return replace(received, closed=closed)

    def _check_queue(self, turns: list[Turn]) -> None:
        """Refuse one more turn behind these, of which the first one runs, or runs next."""
        if len(turns) > self.intake.max_queued:
            raise TooManyRequests(
                f"{len(turns) - 1} turns of this session wait already, and at most {self.intake.max_queued} may"
                " (turns.max_queued); send the message again when one of them is finished",
                QUEUE_RETRY_SECONDS,
            )

    def _decided(self, running: Turn, decision: Decision, reason: str | None) -> Received:
        match decision:
            case Decision.SUPERSEDE:
                turn_id = new_id("turn")
                if not moves.supersede(self.tx, running, turn_id, self.now):
                    raise Again
                turn = self._turn(self.message, turn_id, running.turn_group_id, after_epoch=running.epoch)
                moves.hand_over(self.tx, running, turn_id)
                moves.want_undone(self.tx, running)
            case Decision.ABSORB:
                absorbed = moves.absorb(self.tx, running, self._until(), self.now)
                if absorbed is None:
                    raise Again
                turn = absorbed
                moves.want_undone(self.tx, running)
            case Decision.QUEUE:
                turn = self._turn(self.message, reason=reason)
            case Decision.FORCE_COMPLETE:
                if not moves.force(self.tx, running, self.now):
                    raise Again
                turn = self._turn(self.message, reason=reason)
            case _:
                assert_never(decision)
        return self._stored(turn, decision, reason, running)

    def _until(self) -> str:
        return later(self.moment, window_seconds(self.message.channel, self.intake.windows))

    def _turn(
        self,
        of: UserMessage | Turn,
        turn_id: str | None = None,
        group: str | None = None,
        until: str | None = None,
        reason: str | None = None,
        after_epoch: int = 0,
    ) -> Turn:
        """A new turn. One that takes another's place begins behind its epoch: ids of the old one's stream are then those
        of an earlier version.
        """
        turn_id = turn_id or new_id("turn")
        fields = ("principal", "tenant_id", "agent_id", "customer_id", "channel", "session_key")
        return moves.insert_turn(
            self.tx,
            {
                **{name: getattr(of, name) for name in fields},
                "id": turn_id,
                "turn_group_id": group or group_of(turn_id),
                "until": until or self._until(),
                "reason": reason,
                "now": self.now,
                "epoch": after_epoch + 1,
            },
        )

    def _stored(
        self, turn: Turn, decision: Decision | None, reason: str | None, running: Turn | None = None
    ) -> Received:
        message = self.message
        message_id = message.message_id or new_id("msg")
        values = {
            **self.session,
            "message_id": message_id,
            "turn_id": turn.id,
            "content": message.content,
            "metadata": self.metadata,
            "idempotency_key": self.key,
            "fingerprint": message.fingerprint,
            "content_hash": self.content_hash,
            "created_at": self.now,
        }
        if self.tx.execute(_STORE, values).rowcount != 1:
            raise Again
        restarted = decision in {Decision.SUPERSEDE, Decision.ABSORB} and running is not None
        interrupted = running.id if running is not None and restarted else None
        return self._told(Received(Status.NEW, turn, message_id, decision, reason, interrupted=interrupted))

    def _told(self, received: Received) -> Received:
        more: dict[str, Json] = {"decision": received.decision, "reason": received.reason}
        event_ids = append(self.tx, [moves.event_of(moves.RECEIVED, received.turn, **more)])
        return replace(received, event_id=event_ids[-1])
