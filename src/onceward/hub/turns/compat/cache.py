"""Idempotency cache of the chat contract, as a thin layer over the ledger: the same names and results, without races.

    result = await cache.check_and_set(key, fingerprint)
    if result.status is IdempotencyStatus.PROCESSING_STARTED:
        …                                              # the key is ours
        await cache.mark_complete(key, fingerprint, response)

One process can check a key and another one mark it. The stored entry is then the one that is marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_never

from onceward.core.claim import CHECK_STATUS, Busy, Claim, Expired, InDoubt, Mismatch, Replay, Status
from onceward.core.fingerprint import Digest
from onceward.core.key import KEY_BYTES_MAX, check_built_key, check_text
from onceward.core.outcome import INLINE_BYTES_MAX, Outcome, cut, pack, unpack
from onceward.errors import ClaimLost, InvalidOption, KeyReused, OutcomeNotKept
from onceward.ledger.internals import read_ref
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import RESULT_BYTES_MAX
from onceward.tools.keys import API, scope_of
from onceward.tools.observer import IdempotencyStatus

# The lease of the claim, which is not renewed: after this time another caller may start.
PROCESSING_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class IdempotencyCheckResult:
    """Result of a check.

    Attributes:
        status: The status of the key.
        cached_response: The response that was marked complete. It may be None or empty, so use `status` to find out
            whether there is one.
        stored_fingerprint: After a mismatch, the fingerprint that the key was used with.
    """

    status: IdempotencyStatus
    cached_response: Any = None
    stored_fingerprint: str | None = None


class IdempotencyCache:
    """Checks and marks keys of one layer, for one principal.

    Args:
        ledger: The ledger that stores the keys.
        default_ttl: How long a response is remembered.
        processing_ttl: The time after which another caller may start, if the first one marks nothing.
        layer: The layer. Keys of different layers do not collide.
        principal: The principal to whom the keys belong.

    Raises:
        errors.InvalidOption: `ledger` is not a `Ledger`.
    """

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
        # Claims of this process, by key. With them it can end only its own claims, not those of a later holder.
        self._claims: dict[str, Claim] = {}

    def of_layer(self, layer: str, default_ttl: timedelta | None = None) -> IdempotencyCache:
        """Return a cache on the same ledger whose keys do not collide with those of this one.

        Args:
            layer: The name of the layer.
            default_ttl: How long a response is remembered; as in this cache if None.

        Returns:
            The new cache, for the same principal.
        """
        return IdempotencyCache(
            self._ledger,
            default_ttl or self._default_ttl,
            processing_ttl=self._processing_ttl,
            layer=layer,
            principal=self._principal,
        )

    async def check_and_set(self, idempotency_key: str, request_fingerprint: str) -> IdempotencyCheckResult:
        """Check whether a request is a duplicate. If not, claim its key.

        Args:
            idempotency_key: The key.
            request_fingerprint: The fingerprint of the request.

        Returns:
            The status. `PROCESSING_STARTED` means that the caller now has the key.

        Raises:
            errors.InvalidKey: The key or the fingerprint cannot be stored.
            errors.StoreUnavailable: The ledger's store did not respond.
        """
        found = await self._ledger.begin(
            self._scope,
            check_built_key(idempotency_key),
            Digest(check_text("the fingerprint", request_fingerprint, KEY_BYTES_MAX)),
            repeatable=True,
            lease_seconds=self._processing_ttl.total_seconds(),
            retain_seconds=self._default_ttl.total_seconds(),
        )
        status = IdempotencyStatus(CHECK_STATUS[type(found)])
        match found:
            case Claim():
                self._claims[idempotency_key] = found
                return IdempotencyCheckResult(status)
            case Replay(entry):
                try:
                    response = unpack(await self._ledger.body(entry))
                except OutcomeNotKept:
                    response = None
                return IdempotencyCheckResult(status, response)
            case Mismatch(entry):
                return IdempotencyCheckResult(status, stored_fingerprint=entry.fingerprint)
            case Busy() | InDoubt() | Expired():
                return IdempotencyCheckResult(status)
            case _:
                assert_never(found)

    async def mark_complete(
        self, idempotency_key: str, request_fingerprint: str, response: Any, ttl: timedelta | None = None
    ) -> None:
        """Record the response to a request. If one is already recorded, nothing changes.

        Args:
            idempotency_key: The key.
            request_fingerprint: The fingerprint of the request.
            response: The response, a value that the ledger can store.
            ttl: How long it is remembered; the cache's default if None.

        Raises:
            errors.KeyReused: The key belongs to another request.
            errors.ClaimLost: Another process has taken over the key.
            errors.StoreUnavailable: The ledger's store did not respond.
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
            entry = await read_ref(self._ledger, claim.entry.ref)
            if entry is None or entry.status is not Status.COMPLETED:
                raise ClaimLost(f"another process has taken over the key {idempotency_key!r}, and its response counts")

    async def mark_failed(self, idempotency_key: str) -> None:
        """Release a key, so that any caller can try the request again. A recorded response stays.

        Args:
            idempotency_key: The key.

        Raises:
            errors.StoreUnavailable: The ledger's store did not respond.
        """
        claim = self._claims.pop(idempotency_key, None)
        if claim is None:
            entry = await self._ledger.read(self._scope, idempotency_key)
            if entry is None or entry.status is not Status.IN_PROGRESS:
                return
            claim = Claim(entry, None)
        await self._ledger.release(claim)

    async def _claim(self, key: str, fingerprint: str) -> Claim | None:
        """Return the claim to settle; None if it is already settled."""
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
