"""Claims on beats: decide which process answers a beat, and remember the response.

The key is made from the message ids, and the fingerprint from the ids and contents. Neither contains the turn id: a
beat that is delivered again has a new turn, and must find its earlier response.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from onceward.core.claim import CHECK_STATUS, Claim, Found, Replay
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, Outcome, pack, unpack
from onceward.errors import OutcomeNotKept
from onceward.hub.turns.model.turn import Message, Turn
from onceward.ledger.ledger import Ledger
from onceward.tools.fingerprint import beat_fp
from onceward.tools.keys import BEAT, beat_key, scope_of
from onceward.tools.observer import BEAT_BASED, Observer

BEAT_TTL_SECONDS = 60.0
# The death of a process is noticed at once where it can be proved, and after this time where it cannot.
LEASE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BeatResponse:
    """Recorded response to a beat, and the turn that gave it. `response` is None if it was too large to be stored."""

    turn_id: str
    response: str | None


@dataclass(frozen=True, slots=True)
class BeatClaims:
    """Claims on beats in one ledger. A response is remembered for `ttl_seconds`."""

    ledger: Ledger
    ttl_seconds: float = BEAT_TTL_SECONDS
    lease_seconds: float = LEASE_SECONDS
    observer: Observer | None = None

    async def begin(self, turn: Turn, messages: Sequence[Message]) -> Found:
        """Claim the beat of this turn, or find who has claimed or answered it."""
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
            self.observer.checked(key, CHECK_STATUS[type(found)], cached=cached, seconds=seconds, key_type=BEAT_BASED)
        return found

    async def settle(self, claim: Claim, turn: Turn) -> None:
        """Record the response of the turn, so that the same beat gets it again."""
        body = pack({"turn_id": turn.id, "response": turn.response}, INLINE_BYTES_MAX)
        if body is None:
            body = pack({"turn_id": turn.id, "response": None}, INLINE_BYTES_MAX)
        await self.ledger.settle(claim, NOTHING if body is None else Outcome(body=body), self.ttl_seconds)

    async def recorded_response(self, found: Replay) -> BeatResponse:
        """Return the recorded response, or only its turn if the response itself was not stored."""
        try:
            stored = cast("dict[str, Any]", unpack(await self.ledger.body(found.entry)))
        except OutcomeNotKept:
            return BeatResponse(found.entry.endpoint, None)
        return BeatResponse(stored["turn_id"], stored["response"])
