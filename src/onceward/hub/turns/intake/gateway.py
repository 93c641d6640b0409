"""Gateway for messages. A message is acknowledged only after it is stored together with its turn.

One write transaction does all the work (see `receive`). The transactions of one session run one after the other, so its
messages have one order. The brain's `decide` runs outside of the transaction, on the turn as it was read. If the turn
has changed meanwhile, `decide` runs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onceward.errors import TransactionConflict
from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.intake.receive import (
    NO_OPINION,
    Intake,
    Opinion,
    Received,
    RetryReceive,
    Status,
    Undecided,
    receive,
)
from onceward.hub.turns.model.db_threads import in_thread
from onceward.hub.turns.model.message import UserMessage
from onceward.hub.turns.model.turn import Clock, now_utc

# Other messages may change the turn each time while the brain decides. The last attempt does without its decision.
_ATTEMPTS_MAX = 8


class TurnWaker(Protocol):
    """The part of a runner that the gateway uses. Both methods must be called on the event loop."""

    def wake(self, turn_id: str) -> None:
        """Check soon whether this turn can run."""

    def interrupt(self, turn_id: str) -> None:
        """Cancel a run of this turn in this process, because its epoch has passed."""


class TurnGateway:
    """Receives the messages for one brain.

    Args:
        database: The hub's database.
        brain: The brain that answers the messages. Its `decide` is called here.
        runner: The runner to wake for a turn; None if something else runs turns.
        intake: Limits and times; the defaults of `Intake` if None.
        now: The clock.
        hint: Called after each commit that appended to the event log.
        told: Called after that with the id of each turn that changed.
    """

    def __init__(
        self,
        database: Database,
        brain: Brain,
        runner: TurnWaker | None = None,
        *,
        intake: Intake | None = None,
        now: Clock = now_utc,
        hint: Callable[[], None] = lambda: None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._brain = brain
        self._runner = runner
        self._intake = intake or Intake()
        self._now = now
        self._hint = hint
        self._notify = told

    async def receive_message(self, message: UserMessage) -> Received:
        """Store a message with its turn, or find the turn of a duplicate.

        When this raises, nothing is stored and the idempotency key stays free. Only after `StoreUnavailable` the
        message may have been stored: send it again with the same `idempotency_key` or `message_id`.

        Args:
            message: The message.

        Returns:
            The acknowledgement: the turn that has the message, and the decision about an unfinished turn.

        Raises:
            errors.InvalidInput: A field of the message cannot be accepted.
            errors.TooLarge: The message is larger than `Intake.max_message_bytes`.
            errors.TooManyRequests: The session has `Intake.max_queued` queued turns.
            errors.TransactionConflict: The session kept changing while the message was being received.
            errors.StoreUnavailable: The database did not respond.
        """
        message = message.ready(self._intake.max_message_bytes)
        opinion = NO_OPINION if self._brain.decide is None else None
        for attempt in range(_ATTEMPTS_MAX):
            try:
                found = await in_thread(self._receive, message, opinion)
            except RetryReceive:
                continue
            if isinstance(found, Received):
                return self._notify_all(found)
            if attempt == _ATTEMPTS_MAX - 2:
                opinion = NO_OPINION
                continue
            wanted = await self._brain.decided(found.turn, found.messages, message)
            opinion = Opinion(found.turn.id, found.turn.epoch, wanted)
        raise TransactionConflict(
            f"the session changed during each of {_ATTEMPTS_MAX} attempts to store the message; send it again"
        )

    def _receive(self, message: UserMessage, opinion: Opinion | None) -> Received | Undecided:
        with self._database.write() as tx:
            return receive(tx, message, self._intake, self._now(), opinion, self._brain.meaningful_metadata)

    def _notify_all(self, received: Received) -> Received:
        if received.status is not Status.NEW:
            return received
        self._hint()
        for turn_id in {received.turn_id, received.interrupted or received.turn_id}:
            self._notify(turn_id)
        if self._runner is not None:
            if received.interrupted is not None:
                self._runner.interrupt(received.interrupted)
            if received.closed is not None:
                self._runner.wake(received.closed)
            self._runner.wake(received.turn_id)
        return received
