"""Beats: the messages of a burst, with one response however often and in whichever order they are delivered."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from onceward.core.fingerprint import Digest
from onceward.errors import InvalidOption
from onceward.hub.turns.compat.cache import IdempotencyCache, IdempotencyCheckResult
from onceward.tools.fingerprint import beat_fp
from onceward.tools.keys import BEAT, beat_key

# How long the response to a beat is remembered: longer than any redelivery takes.
BEAT_SECONDS = 60.0


def _new() -> str:
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTurn:
    """The part of a turn that matters for duplicate detection.

    Args:
        messages: The ids of its messages.
        session_key: The session.
        contents: The contents of the messages, if they are known: one for each message, or none.
        id: The id of the turn; a random UUID by default.
        turn_group_id: The group; a random UUID by default. A turn that supersedes another has the same group.

    Raises:
        errors.InvalidOption: `contents` does not have one item for each message.
    """

    messages: Sequence[object]
    session_key: str = ""
    contents: Sequence[str] = ()
    id: object = field(default_factory=_new)
    turn_group_id: object = field(default_factory=_new)

    def __post_init__(self) -> None:
        if self.contents and len(self.contents) != len(self.messages):
            raise InvalidOption(
                f"contents must have one item per message, got {len(self.contents)} for {len(self.messages)} messages"
            )

    @property
    def fingerprint(self) -> Digest:
        """The fingerprint of the message ids and contents, without the turn id: a redelivered beat has a new turn."""
        contents = self.contents or [""] * len(self.messages)
        return beat_fp(zip(self.messages, contents, strict=True))


class BeatIdempotencyManager:
    """Checks whether a beat was already processed.

    Args:
        cache: A cache on the ledger to use. The manager uses a separate layer, so keys do not collide.
        ttl: How long the response to a beat is remembered.

    Raises:
        errors.InvalidOption: `cache` is not an `IdempotencyCache`.
    """

    def __init__(self, cache: IdempotencyCache, ttl: timedelta = timedelta(seconds=BEAT_SECONDS)) -> None:
        if not isinstance(cache, IdempotencyCache):
            raise InvalidOption(f"BeatIdempotencyManager needs an IdempotencyCache(ledger), not {type(cache).__name__}")
        self._cache = cache.of_layer(BEAT, ttl)

    async def check_beat(self, turn: LogicalTurn, tenant_id: object) -> IdempotencyCheckResult:
        """Check whether these messages were already processed, in any order. If not, claim the beat.

        Args:
            turn: The turn with the messages.
            tenant_id: The tenant.

        Returns:
            The status, and the recorded response if the beat is complete.

        Raises:
            errors.StoreUnavailable: The ledger's store did not respond.
        """
        return await self._cache.check_and_set(_key(turn, tenant_id), turn.fingerprint)

    async def mark_beat_complete(self, turn: LogicalTurn, tenant_id: object, response: Any) -> None:
        """Record the response to a beat.

        Args:
            turn: The turn with the messages.
            tenant_id: The tenant.
            response: The response, a value that the ledger can store.

        Raises:
            errors.KeyReused: The same message ids were claimed with other contents.
            errors.ClaimLost: Another process has taken over the beat.
            errors.StoreUnavailable: The ledger's store did not respond.
        """
        await self._cache.mark_complete(_key(turn, tenant_id), turn.fingerprint, response)

    async def mark_beat_failed(self, turn: LogicalTurn, tenant_id: object) -> None:
        """Release the beat, so that it can be processed again.

        Args:
            turn: The turn with the messages.
            tenant_id: The tenant.

        Raises:
            errors.StoreUnavailable: The ledger's store did not respond.
        """
        await self._cache.mark_failed(_key(turn, tenant_id))


def _key(turn: LogicalTurn, tenant_id: object) -> str:
    return beat_key(tenant_id, turn.session_key, turn.messages)
