"""`hub.audit`: read the audit log of the hub. Requires scope `admin`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from onceward.hub.client.connection import PAGE_MAX, HubConnection

_PATH = "/api/v1/audit"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the audit log: who did what, when, and with what result. Times are text in UTC."""

    audit_id: int
    created_at: str
    principal: str
    token_id: str | None
    client: str | None
    source: str
    request_id: str | None
    action: str
    target: str | None
    details: dict[str, Any]
    result: str
    started_id: int | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """A page of the audit log. While `has_more`, pass `next_after` as `after` to get the next page."""

    entries: tuple[AuditEntry, ...]
    next_after: str | None
    has_more: bool


class Audit:
    """The audit log of a hub. `Hub` creates it as `hub.audit`. All methods require scope `admin`."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int = 100, after: str | None = None) -> AuditPage:
        """List one page of the audit log, newest first.

        Args:
            limit: The maximum number in the page, at most 500.
            after: The cursor: `next_after` of the previous page.

        Returns:
            The page.
        """
        return await self._connection.read(_PATH, {"limit": limit, "after": after}, _page)

    async def all(self) -> AsyncGenerator[AuditEntry, None]:
        """Iterate over the whole audit log, newest first, reading as many pages as needed.

        Yields:
            Every entry.
        """
        after, more = None, True
        while more:
            page = await self.list(limit=PAGE_MAX, after=after)
            for entry in page.entries:
                yield entry
            after, more = page.next_after, page.has_more


def _page(body: Any) -> AuditPage:
    return AuditPage(tuple(_entry(one) for one in body["entries"]), body["next_after"], body["has_more"])


def _entry(body: Any) -> AuditEntry:
    return AuditEntry(**{name: body.get(name) for name in AuditEntry.__slots__})
