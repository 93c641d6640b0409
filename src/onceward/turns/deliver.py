"""Sending a finished turn's response to where its user is: once, after it is recorded."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from onceward.core.canonical import Json
from onceward.ledger import Ledger
from onceward.run import run
from onceward.terms import Effect, Terms
from onceward.turns.keys import DELIVERY, scope_of
from onceward.turns.turn import Turn


@runtime_checkable
class ChannelAdapter(Protocol):
    """How responses reach users of a channel.

    `effect` says what sending twice would do. `irreversible`: a message that may have been sent is not sent again, and
    an operator, or `onceward claims resolve`, says what became of it. `idempotent`: the channel itself recognises the
    key, `{tenant}:{turn_id}`, and the message is sent again when nobody knows.
    """

    @property
    def effect(self) -> Effect: ...

    async def send_response(self, turn: Turn, response: Json) -> None:
        """Send it. `errors.NotDone` says that nothing was sent and that it can be tried again."""


async def deliver(ledger: Ledger, adapter: ChannelAdapter, turn: Turn, first: str | None = None) -> None:
    """Send the response of a complete turn, unless that has been done. `first` is the turn that answered this beat when
    it is not this one: what was sent for that turn is not sent again.

    `errors.InDoubt` when nobody knows whether it was sent and it must not be sent twice; `errors.Busy` while somebody
    else is sending it.
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
