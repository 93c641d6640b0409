"""Gateway for messages. A message is acknowledged only after it is stored together with its turn.

    1. An indexed read without a lock recognises a duplicate. It costs no write transaction.
    2. A new message of an idle session is stored with its turn, together with those of other sessions (`new_turns.py`).
       If a runner of this process can run the turn at once, it is stored as started.
    3. Every other message has a transaction of its own (`receive.py`), and so has one that step 2 left out.

The transactions of one session run one after the other, so its messages have one order. The brain's `decide` runs outside
of the transaction, on the turn as it was read. If the turn has changed meanwhile, `decide` runs again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from onceward.errors import TransactionConflict
from onceward.hub.db.engine import Database
from onceward.hub.turns.execution.brain import Brain
from onceward.hub.turns.execution.repository import LoadedTurn
from onceward.hub.turns.intake.incoming import FIND, Incoming, Verdict
from onceward.hub.turns.intake.new_turns import BEGIN_TURNS, NewTurn
from onceward.hub.turns.intake.receive import (
    NO_PREFERENCE,
    Intake,
    Preference,
    Received,
    RetryReceive,
    Status,
    duplicate,
    receive,
)
from onceward.hub.turns.model.message import UserMessage
from onceward.hub.turns.model.turn import Clock, now_utc, order_of

# Other messages may change the turn each time while the brain decides. The last attempt does without its decision.
_ATTEMPTS_MAX = 8


class TurnWaker(Protocol):
    """The part of a runner that the gateway uses. Both methods must be called on the event loop."""

    def wake(self, turn_id: str) -> None:
        """Check soon whether this turn can run."""

    def interrupt(self, turn_id: str) -> None:
        """Cancel a run of this turn in this process, because its epoch has passed."""


@runtime_checkable
class TurnStarter(TurnWaker, Protocol):
    """A runner that runs turns in this process, and can be given a turn that was started as it was stored."""

    def reserve(self, turn_id: str) -> bool:
        """Return whether this turn would run soon if it were started now. Then `run_started` or `give_up` must follow."""

    def run_started(self, loaded: LoadedTurn) -> None:
        """Run a turn whose first attempt was started in the transaction that stored it."""

    def give_up(self, turn_id: str) -> None:
        """Forget a reserved turn, because it was not stored."""


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
        self._starter = runner if isinstance(runner, TurnStarter) else None
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
        incoming = Incoming.of(message, self._intake, self._now(), self._brain.meaningful_metadata)
        finding = incoming.finding(await self._database.lookups.find(FIND, incoming.question))
        received = duplicate(finding)
        if received is not None:
            return received
        if finding.verdict is Verdict.NEW and not finding.busy:
            received = await self._begin_turn(incoming)
        return received or await self._receive(message)

    async def _begin_turn(self, incoming: Incoming) -> Received | None:
        """Store the message with a new turn. None if the session is not idle, or the message is known after all."""
        new, starter = NewTurn.of(incoming), self._starter
        if starter is None or not new.is_due or not starter.reserve(new.turn.id):
            begun = await self._database.writer.add(BEGIN_TURNS, new)
            if begun is not None:
                self._notify_all(begun.received)
                if self._runner is not None:
                    self._runner.wake(begun.received.turn_id)
            return None if begun is None else begun.received
        begun = None
        try:
            begun = await self._database.writer.add(BEGIN_TURNS, new.started())
        finally:
            if begun is None:
                starter.give_up(new.turn.id)
        if begun is None:
            return None
        self._notify_all(begun.received)
        starter.run_started(LoadedTurn(begun.received.turn, (begun.message,), fresh=True))
        return begun.received

    async def _receive(self, message: UserMessage) -> Received:
        """Receive a message whose session may have unfinished turns."""
        preference = NO_PREFERENCE if self._brain.decide is None else None
        for attempt in range(_ATTEMPTS_MAX):
            incoming = Incoming.of(message, self._intake, self._now(), self._brain.meaningful_metadata)
            work = functools.partial(receive.steps, incoming=incoming, preference=preference)
            try:
                found = await self._database.writer.append(work, order_of(message))
            except RetryReceive:
                continue
            if isinstance(found, Received):
                if found.status is Status.NEW:
                    self._notify_all(found)
                    self._wake_all(found)
                return found
            if attempt == _ATTEMPTS_MAX - 2:
                preference = NO_PREFERENCE
                continue
            wanted = await self._brain.decided(found.turn, found.messages, message)
            preference = Preference(found.turn.id, found.turn.epoch, wanted)
        raise TransactionConflict(
            f"the session changed during each of {_ATTEMPTS_MAX} attempts to store the message; send it again"
        )

    def _notify_all(self, received: Received) -> None:
        self._hint()
        for turn_id in {received.turn_id, received.interrupted or received.turn_id}:
            self._notify(turn_id)

    def _wake_all(self, received: Received) -> None:
        if self._runner is not None:
            if received.interrupted is not None:
                self._runner.interrupt(received.interrupted)
            if received.closed is not None:
                self._runner.wake(received.closed)
            self._runner.wake(received.turn_id)
