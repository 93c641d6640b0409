"""`hub.claims`: list the claims of the hub's ledger, and resolve, abandon or forget them. Requires scope `admin`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.hub.client.connection import PAGE_MAX, HubConnection

_PATH = "/api/v1/claims"


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """Snapshot of an entry of the ledger. Times are text in UTC. `show` also gives `recovery_point` and `outcome`."""

    scope: str
    key: str
    status: str
    version: int
    attempt: int
    created_at: str
    claimed_at: str
    lease_until: str | None
    completed_at: str | None
    expires_at: str | None
    repeatable: bool
    user_id: str | None
    endpoint: str | None
    note: str | None
    outcome: dict[str, Any] | None = None
    refuse_until: str | None = None
    not_done_count: int = 0
    recovery_point: Any = None


@dataclass(frozen=True, slots=True)
class ClaimPage:
    """A page of claims. While `has_more`, pass `next_after` as `after` to get the next page."""

    claims: tuple[ClaimSeen, ...]
    next_after: str | None
    has_more: bool


class Claims:
    """Claims of a hub. `Hub` creates it as `hub.claims`. All methods require scope `admin`."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def list(
        self,
        scope: str | None = None,
        status: str | None = None,
        *,
        limit: int = 100,
        after: str | None = None,
        oldest: bool = False,
    ) -> ClaimPage:
        """List one page of claims.

        Args:
            scope: Only claims in this scope.
            status: Only claims with this status: `in_progress`, `completed`, `failed`,
                `in_doubt` or `expired`.
            limit: The maximum number in the page, at most 500.
            after: The cursor: `next_after` of the previous page.
            oldest: Sort by age, oldest first. Otherwise, the order is that of the store.

        Returns:
            The page.
        """
        query = {"scope": scope, "status": status, "limit": limit, "after": after, "oldest": "true" if oldest else None}
        return await self._connection.read(_PATH, query, _page)

    async def all(
        self, scope: str | None = None, status: str | None = None, *, oldest: bool = False
    ) -> AsyncGenerator[ClaimSeen, None]:
        """Iterate over all claims, reading as many pages as needed.

        Args:
            scope: Only claims in this scope.
            status: Only claims with this status: `in_progress`, `completed`, `failed`,
                `in_doubt` or `expired`.
            oldest: Sort by age, oldest first. Otherwise, the order is that of the store.

        Yields:
            Every claim.
        """
        after, more = None, True
        while more:
            page = await self.list(scope, status, limit=PAGE_MAX, after=after, oldest=oldest)
            for claim in page.claims:
                yield claim
            after, more = page.next_after, page.has_more

    async def show(self, scope: str, key: str) -> ClaimSeen:
        """Return one claim with its recorded outcome.

        Args:
            scope: The scope of the claim.
            key: The key of the claim.

        Returns:
            The claim.

        Raises:
            NotFound: The claim does not exist.
        """
        return await self._connection.read(f"{_PATH}/show", {"scope": scope, "key": key}, _claim)

    async def resolve(
        self, scope: str, key: str, version: int, verdict: str, reason: str, *, value: object = None,
        response: Mapping[str, object] | None = None, idempotency_key: str | None = None,
    ) -> ClaimSeen:  # fmt: skip
        """Resolve a claim in doubt.

        Args:
            scope: The scope of the claim.
            key: The key of the claim. It may be truncated as in the log.
            version: The version that you checked. The claim must still have it.
            verdict: `committed` if the effect happened, `not_committed` if it did not and will not.
            reason: How you know. It is recorded with your name.
            value: The result of an effect that happened.
            response: For an HTTP claim that happened: the response that the client's retry gets, with `status`,
                `headers` (one value or a list of values for each name), and `body` or `body_base64`.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The resolved claim.

        Raises:
            NotFound: The claim does not exist.
            Conflict: The claim is not in doubt, or has another version. Nothing was changed.
        """
        sent = {
            "scope": scope,
            "key": key,
            "version": version,
            "verdict": verdict,
            "reason": reason,
            **({} if value is None else {"value": value}),
            **({} if response is None else {"response": dict(response)}),
        }
        return await self._connection.change("POST", f"{_PATH}/resolve", sent, idempotency_key, _claim)

    async def abandon(
        self, scope: str, key: str, version: int, reason: str, *, force: bool = False,
        idempotency_key: str | None = None,
    ) -> ClaimSeen:  # fmt: skip
        """End a claim whose holder will not end it: as failed if it may be repeated, otherwise as in doubt.

        Args:
            scope: The scope of the claim.
            key: The key of the claim. It may be truncated as in the log.
            version: The version that you checked. The claim must still have it.
            reason: Why. It is recorded with your name.
            force: Also end a claim whose lease is running, always as in doubt.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The claim after this change.

        Raises:
            NotFound: The claim does not exist.
            Conflict: The lease is running and `force` is False, or the claim has another version or status.
        """
        sent = {"scope": scope, "key": key, "version": version, "reason": reason, "force": force}
        return await self._connection.change("POST", f"{_PATH}/abandon", sent, idempotency_key, _claim)

    async def forget(
        self, scope: str, key: str, version: int, reason: str, *, idempotency_key: str | None = None
    ) -> ClaimSeen:
        """Remove a completed claim before its retention is over. The next call with the key runs the effect again.

        Args:
            scope: The scope of the claim.
            key: The key of the claim. It may be truncated as in the log.
            version: The version that you checked. The claim must still have it.
            reason: Why. It is logged with your name.
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The claim as it was before.

        Raises:
            NotFound: The claim does not exist.
            Conflict: The claim is not completed, or has another version. Nothing was changed.
        """
        sent = {"scope": scope, "key": key, "version": version, "reason": reason}
        return await self._connection.change("POST", f"{_PATH}/forget", sent, idempotency_key, _claim)

    async def purge(self, *, idempotency_key: str | None = None) -> int:
        """Delete the claims whose retention is over.

        Args:
            idempotency_key: A key of your own, to repeat the call later. By default, the client generates one.

        Returns:
            The number of deleted claims.
        """
        return await self._connection.work(
            f"{_PATH}/purge", {}, idempotency_key, lambda body: int(body["deleted_count"])
        )


def _page(body: Any) -> ClaimPage:
    return ClaimPage(tuple(_claim(one) for one in body["claims"]), body["next_after"], body["has_more"])


def _claim(body: Any) -> ClaimSeen:
    return ClaimSeen(**{name: body.get(name) for name in ClaimSeen.__slots__})
