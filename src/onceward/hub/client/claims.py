"""`hub.claims`: what the hub's ledger holds, and how a doubt is ended. It needs the scope admin."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.hub.client.wire import PAGE_MAX, Wire

_PATH = "/api/v1/claims"


@dataclass(frozen=True, slots=True)
class ClaimSeen:
    """An entry of the ledger as it was when somebody looked. Times are text in UTC; `outcome` only from `show`."""

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


@dataclass(frozen=True, slots=True)
class ClaimPage:
    """Some claims, and the cursor of the next page: pass `next_after` as `after` while `has_more`."""

    claims: tuple[ClaimSeen, ...]
    next_after: str | None
    has_more: bool


class Claims:
    """Made by `Hub`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def list(
        self,
        scope: str | None = None,
        status: str | None = None,
        *,
        limit: int = 100,
        after: str | None = None,
        oldest: bool = False,
    ) -> ClaimPage:
        """A page of at most `limit` claims (500); `oldest` gives the oldest of all first."""
        asked = {"scope": scope, "status": status, "limit": limit, "after": after, "oldest": "true" if oldest else None}
        return await self._wire.look(_PATH, asked, _page)

    async def all(
        self, scope: str | None = None, status: str | None = None, *, oldest: bool = False
    ) -> AsyncGenerator[ClaimSeen, None]:
        """Every claim, in as many pages as it takes."""
        after, more = None, True
        while more:
            page = await self.list(scope, status, limit=PAGE_MAX, after=after, oldest=oldest)
            for claim in page.claims:
                yield claim
            after, more = page.next_after, page.has_more

    async def show(self, scope: str, key: str) -> ClaimSeen:
        """One claim with what is kept of its outcome; `NotFound` when there is none."""
        return await self._wire.look(f"{_PATH}/show", {"scope": scope, "key": key}, _claim)

    async def resolve(
        self, scope: str, key: str, version: int, verdict: str, reason: str, *, value: object = None,
        response: Mapping[str, object] | None = None, idempotency_key: str | None = None,
    ) -> ClaimSeen:  # fmt: skip
        """End a doubt; `Conflict` when the claim is not in doubt under this version.

        On an HTTP claim `response` is what the client's retry gets: `status`, `headers` (one value or a list of them for
        each name), and `body` or `body_base64`.
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
        return await self._wire.change("POST", f"{_PATH}/resolve", sent, idempotency_key, _claim)

    async def abandon(
        self, scope: str, key: str, version: int, reason: str, *, force: bool = False,
        idempotency_key: str | None = None,
    ) -> ClaimSeen:  # fmt: skip
        """End a claim whose holder will not; `Conflict` while its lease runs, unless `force` is given."""
        sent = {"scope": scope, "key": key, "version": version, "reason": reason, "force": force}
        return await self._wire.change("POST", f"{_PATH}/abandon", sent, idempotency_key, _claim)

    async def purge(self, *, idempotency_key: str | None = None) -> int:
        """Delete what is past its retention; gives how many."""
        return await self._wire.work(f"{_PATH}/purge", {}, idempotency_key, lambda said: int(said["deleted_count"]))


def _page(said: Any) -> ClaimPage:
    return ClaimPage(tuple(_claim(one) for one in said["claims"]), said["next_after"], said["has_more"])


def _claim(said: Any) -> ClaimSeen:
    return ClaimSeen(**{name: said.get(name) for name in ClaimSeen.__slots__})
