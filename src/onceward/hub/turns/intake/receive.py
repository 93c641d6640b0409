"""Transaction that receives one message, whatever the state of its session: recognise a duplicate, or give it to a turn.

The result for a duplicate is the turn that has the message. A duplicate of a message of a failed turn retries that
turn's messages, in a new turn of the same group. Messages of idle sessions do not come here, see `new_turns.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from onceward.errors import TooManyRequests
from onceward.hub.db.append import Appending, EventSteps, NewEvent
from onceward.hub.db.engine import Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import new_id
from onceward.hub.turns.intake.incoming import FIND, Finding, Incoming, Verdict
from onceward.hub.turns.model import transitions
from onceward.hub.turns.model.decision import TURN_FULL, Decision, settled_decision
from onceward.hub.turns.model.message import MESSAGE_BYTES_MAX, WINDOW_MILLISECONDS, UserMessage, message_bytes
from onceward.hub.turns.model.turn import Message, State, Turn, group_of, messages_of, size_of

API_TTL_SECONDS = 300.0
CONTENT_WINDOW_SECONDS = 300.0
# A burst has a handful of messages. A larger one comes from a client that does not stop.
MESSAGES_MAX = 200
BYTES_MAX = 1024**2
QUEUED_MAX = 20
# A place in the queue becomes free when the running turn finishes.
QUEUE_RETRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Limits and times of the intake.

    Args:
        api_ttl_seconds: How long an idempotency key is remembered after its turn has completed.
        content_window_seconds: How long a message with neither key nor id is recognised by its content.
        auto_generate_keys: Whether messages are recognised by their content at all.
        checks: False disables duplicate checks by key and by content. A message_id is checked in any case.
        windows: The milliseconds that each channel waits for more messages. Values above 0 are limited to 200 to 3000.
        max_message_bytes: The largest size of one message, text and metadata together.
        max_messages: The largest number of messages of one turn.
        max_bytes: The largest size of all messages of one turn. A turn always accepts its first message.
        max_queued: The largest number of turns of one session that wait behind its oldest unfinished turn.
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
    """Result of receiving a message.

    Attributes:
        NEW: The message was stored, or the messages of its failed turn are retried.
        PROCESSING: It is a duplicate, and its turn is not complete yet.
        COMPLETE: It is a duplicate, and its turn is complete.
        MISMATCH: Its idempotency key was used with another message. Nothing was stored.
    """

    NEW = "new"
    PROCESSING = "processing"
    COMPLETE = "complete"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Received:
    """Acknowledgement of a message.

    Attributes:
        status: The result.
        turn: The turn that has the message.
        message_id: The id of the stored message.
        decision: The decision about the unfinished turn of the session. None if there was none, and if the message
            joined a turn that still waits for more.
        reason: The reason for the decision or for the new turn, or None.
        duplicate_of: The id of the turn that already has the message, or None.
        interrupted: The id of the turn whose run this message ended, or None.
        event_id: The id of the event that was appended, or None for a duplicate.
        tries_again: The id of the failed turn that the new turn retries, or None.
        closed: The id of the turn whose accumulation ended because it is full, or None.
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
        """The id of the turn that has the message."""
        return self.turn.id


@dataclass(frozen=True, slots=True)
class Undecided:
    """Request for the brain's preference about this turn. Nothing was stored; call `receive` again with the preference."""

    turn: Turn
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Preference:
    """The brain's wish, and the turn and epoch that it is about."""

    turn_id: str
    epoch: int
    wanted: Decision | None

    def is_about(self, turn: Turn) -> bool:
        """Return whether the turn is the same and has not been restarted since."""
        return (self.turn_id, self.epoch) == (turn.id, turn.epoch)


# For a brain without `decide`, and for the last attempt.
NO_PREFERENCE = Preference("", 0, None)


class RetryReceive(Exception):  # not an error: another transaction was faster
    """Roll back and try again: the next attempt finds the row that this one conflicted with."""


_FREE = RawStatement("""
    UPDATE turn_messages SET idempotency_key = NULL
    WHERE principal = :principal AND tenant_id = :tenant_id AND idempotency_key = :idempotency_key
""")
_STORE = RawStatement("""
    INSERT INTO turn_messages (principal, tenant_id, session_key, message_id, turn_id, content, metadata,
                               idempotency_key, fingerprint, content_hash, created_at)
    VALUES (:principal, :tenant_id, :session_key, :message_id, :turn_id, :content, :metadata,
            :idempotency_key, :fingerprint, :content_hash, :created_at)
    ON CONFLICT DO NOTHING
""")


@Appending
def receive(tx: Transaction, incoming: Incoming, preference: Preference | None) -> EventSteps[Received | Undecided]:
    """Give a message to a turn, or find it to be a duplicate.

    Without a preference, a message that needs one is returned as `Undecided`. Raises `RetryReceive` if a concurrent
    transaction has changed the turn or taken the key.
    """
    result = _MessageIntake(tx, incoming).receive(preference)
    if isinstance(result, Undecided) or result.status is not Status.NEW:
        return result
    (event_id,) = yield [received_event(result)]
    return replace(result, event_id=event_id)


def received_event(received: Received) -> NewEvent:
    return transitions.event_of(transitions.RECEIVED, received.turn, decision=received.decision, reason=received.reason)


def duplicate(finding: Finding) -> Received | None:
    """Return the acknowledgement of a known message; None if the message must be written or a turn be retried."""
    turn = finding.turn
    if turn is None or finding.verdict not in {Verdict.DUPLICATE, Verdict.MISMATCH}:
        return None
    if finding.verdict is Verdict.MISMATCH:
        return Received(Status.MISMATCH, turn, finding.message_id)
    status = Status.COMPLETE if turn.state is State.COMPLETE else Status.PROCESSING
    return Received(status, turn, finding.message_id, duplicate_of=turn.id)


class _MessageIntake:
    """One message in one transaction."""

    def __init__(self, tx: Transaction, incoming: Incoming) -> None:
        self.tx = tx
        self.incoming = incoming
        self.message = incoming.message
        self.intake = incoming.intake
        self.now = incoming.now
        self.session = incoming.session

    def receive(self, preference: Preference | None) -> Received | Undecided:
        transitions.lock_session(self.tx, self.session)
        finding = self.incoming.finding(FIND.one.rows(self.tx, self.incoming.question))
        if finding.verdict is Verdict.RETRY and finding.turn is not None:
            return self._retry(finding.message_id, finding.turn)
        if finding.verdict is Verdict.KEY_EXPIRED:
            _FREE.count(self.tx, {**self.session, "idempotency_key": self.incoming.key})
        return duplicate(finding) or self._store_new(preference)

    def _retry(self, message_id: str, failed: Turn) -> Received:
        """Retry the messages of a failed turn in a new turn of the same group, so that its tool calls are replayed."""
        busy = transitions.unfinished(self.tx, transitions.session_of(failed), lock=True)
        self._check_queue(busy)
        reason = f"retries {failed.id}"
        turn = self._insert_turn(
            failed, group=failed.turn_group_id, until=self.now, reason=reason, after_epoch=failed.epoch
        )
        if not transitions.replace(self.tx, failed, turn.id):
            raise RetryReceive
        transitions.hand_over(self.tx, failed, turn.id)
        decision = Decision.QUEUE if busy else None
        return Received(Status.NEW, turn, message_id, decision, reason, tries_again=failed.id)

    # New messages.

    def _store_new(self, preference: Preference | None) -> Received | Undecided:
        turns = transitions.unfinished(self.tx, self.session, lock=True)
        if not turns:
            return self._store(self._insert_turn(self.message), None, None)
        newest, running = turns[-1], turns[0]
        if newest.state is State.ACCUMULATING and newest.accumulate_until > self.now:
            if self._is_full(newest):
                return self._queue_behind(turns, newest)
            joined = transitions.join(self.tx, newest.id, self.incoming.until, self.now)
            if joined is None:
                raise RetryReceive
            return self._store(joined, None, None)
        if self._is_full(running):
            return self._queue_behind(turns, running)
        if preference is None or (preference is not NO_PREFERENCE and not preference.is_about(running)):
            return Undecided(running, tuple(messages_of(self.tx, running)))
        decision, reason = settled_decision(
            preference.wanted,
            commit_point=running.commit_point,
            effects_started=running.effects_started,
            queued=len(turns) > 1,
        )
        if decision in {Decision.QUEUE, Decision.FORCE_COMPLETE}:
            self._check_queue(turns)
        return self._apply(running, decision, reason)

    def _is_full(self, turn: Turn) -> bool:
        """Return whether this message would take the turn over its limits."""
        messages, size = size_of(self.tx, turn)
        size += message_bytes(self.message.content, self.incoming.metadata)
        return messages >= self.intake.max_messages or size > self.intake.max_bytes

    def _queue_behind(self, turns: list[Turn], full: Turn) -> Received:
        """End the accumulation of a full turn, and queue the message in a new turn."""
        self._check_queue(turns)
        closed = full.id if transitions.close(self.tx, full, self.now) else None
        received = self._store(self._insert_turn(self.message, reason=TURN_FULL), Decision.QUEUE, TURN_FULL)
        return replace(received, closed=closed)

    def _check_queue(self, turns: list[Turn]) -> None:
        """Refuse a new turn if the queue is full. The first of these turns is not queued: it runs, or runs next."""
        if len(turns) > self.intake.max_queued:
            raise TooManyRequests(
                f"at most {self.intake.max_queued} queued turns per session (turns.max_queued), and"
                f" {len(turns) - 1} are waiting; send the message again when one of them has finished",
                QUEUE_RETRY_SECONDS,
            )

    def _apply(self, running: Turn, decision: Decision, reason: str | None) -> Received:
        match decision:
            case Decision.SUPERSEDE:
                turn_id = new_id("turn")
                if not transitions.supersede(self.tx, running, turn_id, self.now):
                    raise RetryReceive
                turn = self._insert_turn(self.message, turn_id, running.turn_group_id, after_epoch=running.epoch)
                transitions.hand_over(self.tx, running, turn_id)
                transitions.request_undo(self.tx, running)
            case Decision.ABSORB:
                absorbed = transitions.absorb(self.tx, running, self.incoming.until, self.now)
                if absorbed is None:
                    raise RetryReceive
                turn = absorbed
                transitions.request_undo(self.tx, running)
            case Decision.QUEUE:
                turn = self._insert_turn(self.message, reason=reason)
            case Decision.FORCE_COMPLETE:
                if not transitions.force(self.tx, running, self.now):
                    raise RetryReceive
                turn = self._insert_turn(self.message, reason=reason)
            case _:
                assert_never(decision)
        return self._store(turn, decision, reason, running)

    def _insert_turn(
        self,
        of: UserMessage | Turn,
        turn_id: str | None = None,
        group: str | None = None,
        until: str | None = None,
        reason: str | None = None,
        after_epoch: int = 0,
    ) -> Turn:
        """Insert a new turn.

        A turn that replaces another one starts with a higher epoch, so ids of the old stream have an earlier version.
        """
        turn_id = turn_id or new_id("turn")
        fields = ("principal", "tenant_id", "agent_id", "customer_id", "channel", "session_key")
        return transitions.insert_turn(
            self.tx,
            {
                **{name: getattr(of, name) for name in fields},
                "id": turn_id,
                "turn_group_id": group or group_of(turn_id),
                "until": until or self.incoming.until,
                "reason": reason,
                "now": self.now,
                "epoch": after_epoch + 1,
            },
        )

    def _store(
        self, turn: Turn, decision: Decision | None, reason: str | None, running: Turn | None = None
    ) -> Received:
        message_id = self.message.message_id or new_id("msg")
        values = {
            **self.session,
            "message_id": message_id,
            "turn_id": turn.id,
            "content": self.message.content,
            "metadata": self.incoming.metadata,
            "idempotency_key": self.incoming.key,
            "fingerprint": self.message.fingerprint,
            "content_hash": self.incoming.content_hash,
            "created_at": self.now,
        }
        if _STORE.count(self.tx, values) != 1:
            raise RetryReceive
        restarted = decision in {Decision.SUPERSEDE, Decision.ABSORB} and running is not None
        interrupted = running.id if running is not None and restarted else None
        return Received(Status.NEW, turn, message_id, decision, reason, interrupted=interrupted)
