"""The claim on a beat: who of several processes answers these messages, and what the answer was.

The key is made of the message ids and the fingerprint of what they say, not of the turn: a beat that is delivered again
has a new turn, and must find the answer that it got before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from onceward.core.claim import Busy, Claim, Found, InDoubt, Mismatch, Replay
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, Outcome, pack, unpack
from onceward.errors import OutcomeNotKept
from onceward.ledger import Ledger
from onceward.turns.fingerprint import beat_fp
from onceward.turns.keys import BEAT, beat_key, scope_of
from onceward.turns.observe import BEAT_BASED, Observer
from onceward.turns.turn import Message, Turn

BEAT_TTL_SECONDS = 60.0
# A process that is gone is noticed at once where that can be proved, and after this time elsewhere.
LEASE_SECONDS = 30.0

# What the metrics call what was found.
_STATUSES: dict[type[Found], str] = {
    Claim: "processing_started",
    Busy: "duplicate_processing",
    Replay: "duplicate_completed",
    Mismatch: "fingerprint_mismatch",
    InDoubt: "in_doubt",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What a beat was answered with, and by which turn. `response` is None when it was too large to be kept here."""

    turn_id: str
    response: str | None


@dataclass(frozen=True, slots=True)
class Beats:
    """The beats in one ledger. An answer is remembered for `ttl_seconds`."""

    ledger: Ledger
    ttl_seconds: float = BEAT_TTL_SECONDS
    lease_seconds: float = LEASE_SECONDS
    observer: Observer | None = None

    async def begin(self, turn: Turn, messages: Sequence[Message]) -> Found:
        """Ask for the beat of this turn."""
        started = time.perf_counter()
        key = beat_key(turn.tenant_id, turn.session_key, [one.message_id for one in messages])
        found = await self.ledger.begin(
            scope_of(BEAT, turn.principal, turn.tenant_id),
            key,
            beat_fp((one.message_id, one.content) for one in messages),
            repeatable=True,
            lease_seconds=self.lease_seconds,
            retain_seconds=self.ttl_seconds,
            user_id=turn.principal,
            endpoint=turn.id,
        )
        if self.observer is not None:
            seconds = time.perf_counter() - started
            cached = isinstance(found, Replay)
            self.observer.checked(key, _STATUSES[type(found)], cached=cached, seconds=seconds, key_type=BEAT_BASED)
        return found

    async def settle(self, claim: Claim, turn: Turn) -> None:
        """The beat is answered: whoever asks again gets this response."""
        body = pack({"turn_id": turn.id, "response": turn.response}, INLINE_BYTES_MAX)
        if body is None:
            body = pack({"turn_id": turn.id, "response": None}, INLINE_BYTES_MAX)
        await self.ledger.settle(claim, NOTHING if body is None else Outcome(body=body), self.ttl_seconds)

    async def answered(self, found: Replay) -> Answered:
        """The answer that is kept, as far as it is."""
        try:
            kept = cast("dict[str, Any]", unpack(await self.ledger.body(found.entry)))
        except OutcomeNotKept:
            return Answered(found.entry.endpoint, None)
        return Answered(kept["turn_id"], kept["response"])
