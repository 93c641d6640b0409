"""Beats: the messages of a burst, which have one answer however often and in whichever order they are delivered."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onceward.core.fingerprint import Digest
from onceward.errors import InvalidOption
from onceward.turns.cache import IdempotencyCache, IdempotencyCheckResult
from onceward.turns.fingerprint import beat_fp
from onceward.turns.keys import BEAT, beat_key

# How long a finished beat answers for itself: longer than any redelivery takes.
BEAT_SECONDS = 60.0


def _new() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTurn:
    """A turn, as far as duplicates are concerned: the ids of its messages, and what they say where that is known.

    A turn that supersedes another has a new `id` and the same `turn_group_id`.
    """

    messages: Sequence[object]
    session_key: str = ""
    contents: Sequence[str] = ()
    id: object = field(default_factory=_new)
    turn_group_id: object = field(default_factory=_new)

    def __post_init__(self) -> None:
        if self.contents and len(self.contents) != len(self.messages):
            raise InvalidOption(f"{len(self.messages)} messages have {len(self.contents)} contents")

    @property
    def fingerprint(self) -> Digest:
        """Of the content. A redelivered beat has a new turn id, and must read as a duplicate all the same."""
        contents = self.contents or [""] * len(self.messages)
        return beat_fp(zip(self.messages, contents, strict=True))


class BeatIdempotencyManager:
    """Finds out whether a beat was processed already."""

    def __init__(self, cache: IdempotencyCache, ttl: timedelta = timedelta(seconds=BEAT_SECONDS)) -> None:
        if not isinstance(cache, IdempotencyCache):
            raise InvalidOption(f"BeatIdempotencyManager needs an IdempotencyCache(ledger), not {type(cache).__name__}")
        self._cache = cache.of_layer(BEAT, ttl)

    async def check_beat(self, turn: LogicalTurn, tenant_id: object) -> IdempotencyCheckResult:
        """Look whether these messages were processed already, in whichever order they came."""
        return await self._cache.check_and_set(_key(turn, tenant_id), turn.fingerprint)

    async def mark_beat_complete(self, turn: LogicalTurn, tenant_id: object, response: Any) -> None:
        """Keep the response for every message of the beat."""
        await self._cache.mark_complete(_key(turn, tenant_id), turn.fingerprint, response)

    async def mark_beat_failed(self, turn: LogicalTurn, tenant_id: object) -> None:
        """Let the beat be tried again."""
        await self._cache.mark_failed(_key(turn, tenant_id))


def _key(turn: LogicalTurn, tenant_id: object) -> str:
    return beat_key(tenant_id, turn.session_key, turn.messages)
