"""Where messages come in. A message is acknowledged when it is stored together with its turn, and not before.

One write transaction does all of it (see `receive`); transactions of one session follow each other, so that its
messages have one order. The brain is asked for its opinion outside of the transaction, about the turn as it stood; when
that turn has changed meanwhile, it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onceward.db.engine import Database
from onceward.errors import TransactionConflict
from onceward.turns.brain import Brain
from onceward.turns.message import UserMessage
from onceward.turns.receive import NO_OPINION, Again, Intake, Opinion, Received, Status, Undecided, receive
from onceward.turns.threads import in_thread
from onceward.turns.turn import Clock, now_utc

# A turn that changes while its brain is asked about it, every time, does so because others send faster than it thinks.
_LOOKS = 8


class Wakes(Protocol):
    """Whoever runs turns, as far as the gateway is concerned. Both may be called on the event loop only."""

    def wake(self, turn_id: str) -> None:
        """There may be something to do for this turn."""

    def interrupt(self, turn_id: str) -> None:
        """If a run of this turn is going on here, it is over: its epoch has passed."""


class TurnGateway:
    """Receives the messages for one brain. `hint` is called after every commit that appended to the event log, `told`
    with the ids of the turns that it is about.
    """

    def __init__(
        self,
        database: Database,
        brain: Brain,
        runner: Wakes | None = None,
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
        self._told = told

    async def receive_message(self, message: UserMessage) -> Received:
        """Store the message and say which turn carries it.

        `InvalidInput` when it cannot be accepted, `TooLarge` when it is over its limit, `TooManyRequests` when enough of
        its session is queued. Then nothing is stored, and the idempotency key stays free.
        """
        message = message.ready(self._intake.max_message_bytes)
        opinion = NO_OPINION if self._brain.decide is None else None
        for look in range(_LOOKS):
            try:
                found = await in_thread(self._receive, message, opinion)
            except Again:
                continue
            if isinstance(found, Received):
                return self._acted(found)
            if look == _LOOKS - 2:
                opinion = NO_OPINION
                continue
            wanted = await self._brain.decided(found.turn, found.messages, message)
            opinion = Opinion(found.turn.id, found.turn.epoch, wanted)
        raise TransactionConflict("the session changes faster than it can be looked at; send the message again")

    def _receive(self, message: UserMessage, opinion: Opinion | None) -> Received | Undecided:
        with self._database.write() as tx:
            return receive(tx, message, self._intake, self._now(), opinion, self._brain.meaningful_metadata)

    def _acted(self, received: Received) -> Received:
        if received.status is not Status.NEW:
            return received
        self._hint()
        for turn_id in {received.turn_id, received.interrupted or received.turn_id}:
            self._told(turn_id)
        if self._runner is not None:
            if received.interrupted is not None:
                self._runner.interrupt(received.interrupted)
            if received.closed is not None:
                self._runner.wake(received.closed)
            self._runner.wake(received.turn_id)
        return received
