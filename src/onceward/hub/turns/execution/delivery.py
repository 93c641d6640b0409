"""Delivery: send the recorded response of a finished turn to its channel, once."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from onceward.core.canonical import Json
from onceward.hub.turns.model.turn import Turn
from onceward.ledger.ledger import Ledger
from onceward.ledger.run import run
from onceward.ledger.terms import Effect, Terms
from onceward.tools.keys import DELIVERY, scope_of


@runtime_checkable
class ChannelAdapter(Protocol):
    """Sends responses to the users of a channel. Implement it and pass it to `Engine`."""

    @property
    def effect(self) -> Effect:
        """The effect class of sending.

        `irreversible`: a response that may have been sent is not sent again, until an operator decides with
        `onceward claims resolve`. `idempotent`: the channel recognises the key `{tenant}:{turn_id}` itself, and a
        response that may have been sent is sent again.
        """
        ...

    async def send_response(self, turn: Turn, response: Json) -> None:
        """Send the response of a turn.

        Args:
            turn: The complete turn.
            response: The response as the brain returned it.

        Raises:
            errors.NotDone: Nothing was sent, and sending can be tried again.
        """


async def deliver(ledger: Ledger, adapter: ChannelAdapter, turn: Turn, first: str | None = None) -> None:
    """Send the response of a complete turn, unless it was already sent.

    `first` is the turn that answered this beat, if it is another one: a response sent for that turn is not sent again.
    Raises `errors.InDoubt` if the response may have been sent and must not be sent twice, and `errors.Busy` while
    another process is sending it.
    """

    async def send() -> None:
        await adapter.send_response(turn, turn.answer)

    await run(
        ledger,
        f"{turn.tenant_id}:{first or turn.id}",
        send,
        fingerprint=None,
        terms=Terms(effect=adapter.effect),
        scope=scope_of(DELIVERY, turn.principal, turn.tenant_id),
    )
