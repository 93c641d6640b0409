"""The cache of the seed, as a thin face over the ledger: the same names and answers, without its races.

    result = await cache.check_and_set(key, fingerprint)
    if result.status is IdempotencyStatus.PROCESSING_STARTED:
        …                                              # the key is ours
        await cache.mark_complete(key, fingerprint, response)

Whoever checked may be another process than whoever marks: then the entry that is there is the one that is marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_never

from onceward.core.claim import Busy, Claim, InDoubt, Mismatch, Replay, Status
from onceward.core.fingerprint import Digest
from onceward.core.key import KEY_BYTES_MAX, check_built_key, check_text
from onceward.core.outcome import INLINE_BYTES_MAX, Outcome, cut, pack, unpack
from onceward.errors import ClaimLost, InvalidOption, KeyReused, OutcomeNotKept
from onceward.ledger import Ledger
from onceward.terms import RESULT_BYTES_MAX
from onceward.turns.keys import API, scope_of
from onceward.turns.observe import IdempotencyStatus

# How long whoever started may work before another may start; nobody renews this claim.
PROCESSING_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class IdempotencyCheckResult:
    """`cached_response` is what was marked complete: ask the status whether there is one, an empty one is one, too."""

    status: IdempotencyStatus
    cached_response: Any = None
    stored_fingerprint: str | None = None


class IdempotencyCache:
    """Checks and marks keys of one layer, for one principal."""

    def __init__(
        self,
        ledger: Ledger,
        default_ttl: timedelta = timedelta(hours=24),
        *,
        processing_ttl: timedelta = timedelta(seconds=PROCESSING_SECONDS),
        layer: str = API,
        principal: str = "local",
    ) -> None:
        if not isinstance(ledger, Ledger):
            raise InvalidOption(
                f"IdempotencyCache needs a Ledger, not {type(ledger).__name__}: open_ledger('redis://…') makes one"
            )
        self._ledger = ledger
        self._default_ttl = default_ttl
        self._processing_ttl = processing_ttl
        self._principal = principal
        self._scope = scope_of(layer, principal)
        # What this process started: it may end that, and nothing that another has taken over since.
        self._claims: dict[str, Claim] = {}

    def of_layer(self, layer: str, default_ttl: timedelta | None = None) -> IdempotencyCache:
        """A cache on the same ledger whose keys never meet those of this one."""
        return IdempotencyCache(
            self._ledger,
            default_ttl or self._default_ttl,
            processing_ttl=self._processing_ttl,
            layer=layer,
            principal=self._principal,
        )

    async def check_and_set(self, idempotency_key: str, request_fingerprint: str) -> IdempotencyCheckResult:
        """Look whether the request is a duplicate; if it is none, it counts as being processed from now on."""
        found = await self._ledger.begin(
            self._scope,
            check_built_key(idempotency_key),
            Digest(check_text("the fingerprint", request_fingerprint, KEY_BYTES_MAX)),
            repeatable=True,
            lease_seconds=self._processing_ttl.total_seconds(),
            retain_seconds=self._default_ttl.total_seconds(),
        )
        match found:
            case Claim():
                self._claims[idempotency_key] = found
                return IdempotencyCheckResult(IdempotencyStatus.PROCESSING_STARTED)
            case Busy():
                return IdempotencyCheckResult(IdempotencyStatus.DUPLICATE_PROCESSING)
            case Replay(entry):
                try:
                    response = unpack(await self._ledger.body(entry))
                except OutcomeNotKept:
                    response = None
                return IdempotencyCheckResult(IdempotencyStatus.DUPLICATE_COMPLETED, response)
            case Mismatch(entry):
                status = IdempotencyStatus.FINGERPRINT_MISMATCH
                return IdempotencyCheckResult(status, stored_fingerprint=entry.fingerprint)
            case InDoubt():
                return IdempotencyCheckResult(IdempotencyStatus.IN_DOUBT)
            case _:
                assert_never(found)

    async def mark_complete(
        self, idempotency_key: str, request_fingerprint: str, response: Any, ttl: timedelta | None = None
    ) -> None:
        """Keep the response for everyone who asks again. The first one stands: a second one changes nothing.

        `KeyReused` when the key belongs to another request, `ClaimLost` when another has taken it over.
        """
        claim = await self._claim(idempotency_key, request_fingerprint)
        if claim is None:
            return
        seconds = (ttl or self._default_ttl).total_seconds()
        body = pack(response, RESULT_BYTES_MAX)
        outcome = Outcome(body=body)
        if body is not None and len(body) > INLINE_BYTES_MAX:
            chunks = cut(body)
            await self._ledger.append(claim, claim.entry.outcome.chunks + 1, chunks)
            outcome = Outcome(chunks=len(chunks))
        if not await self._ledger.settle(claim, outcome, seconds):
            entry = await self._ledger.look(claim.entry.ref)
            if entry is None or entry.status is not Status.COMPLETED:
                raise ClaimLost(f"another has taken over {idempotency_key!r}; its response is the one that counts")

    async def mark_failed(self, idempotency_key: str) -> None:
        """Let the request be tried again, by anybody. What is complete stays so."""
        claim = self._claims.pop(idempotency_key, None)
        if claim is None:
            entry = await self._ledger.read(self._scope, idempotency_key)
            if entry is None or entry.status is not Status.IN_PROGRESS:
                return
            claim = Claim(entry, None)
        await self._ledger.release(claim)

    async def _claim(self, key: str, fingerprint: str) -> Claim | None:
        """The claim to settle; None when it is settled already."""
        own = self._claims.get(key)
        if own is not None and own.entry.fingerprint == fingerprint:
            return self._claims.pop(key)
        entry = await self._ledger.read(self._scope, key)
        if entry is None or entry.status is Status.FAILED:
            result = await self.check_and_set(key, fingerprint)
            if result.status is IdempotencyStatus.PROCESSING_STARTED:
                return self._claims.pop(key)
            entry = await self._ledger.read(self._scope, key)
        if entry is None or entry.status is Status.COMPLETED:
            return None
        if entry.fingerprint != fingerprint:
            raise KeyReused(f"the key {key!r} belongs to another request")
        return Claim(entry, None)
