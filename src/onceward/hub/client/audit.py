"""`hub.audit`: read the audit log of the hub. Requires scope `admin`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

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


class AuditOnly(TypedDict, total=False):
    """Conditions that an entry must meet.

    Attributes:
        principal: The principal, exactly.
        action: The action, such as `claim.resolve`, or only its first part, such as `claim`.
        since: The earliest time: a `datetime` with a zone, or text such as `2031-05-01` or `2031-05-01T08:00:00Z`.
        until: The first time that is too late. A date without a time is included.
    """

    principal: str | None
    action: str | None
    since: str | datetime | None
    until: str | datetime | None


class Audit:
    """The audit log of a hub. `Hub` creates it as `hub.audit`. All methods require scope `admin`."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection

    async def list(self, *, limit: int = 100, after: str | None = None, **only: Unpack[AuditOnly]) -> AuditPage:
        """List one page of the audit log, newest first.

        Args:
            limit: The maximum number in the page, at most 500.
            after: The cursor: `next_after` of the previous page.
            only: Conditions that an entry must meet; see `AuditOnly`.

        Returns:
            The page.

        Raises:
            InvalidInput: `since` or `until` is not a time.
        """
        times = {name: _time(only.get(name)) for name in ("since", "until")}
        query = {"principal": only.get("principal"), "action": only.get("action"), **times}
        return await self._connection.read(_PATH, {"limit": limit, "after": after, **query}, _page)

    async def all(self, **only: Unpack[AuditOnly]) -> AsyncGenerator[AuditEntry, None]:
        """Iterate over the audit log, newest first, reading as many pages as needed.

        Args:
            only: Conditions that an entry must meet; see `AuditOnly`.

        Yields:
            Every entry.

        Raises:
            InvalidInput: `since` or `until` is not a time.
        """
        after, more = None, True
        while more:
            page = await self.list(limit=PAGE_MAX, after=after, **only)
            for entry in page.entries:
                yield entry
            after, more = page.next_after, page.has_more


def _time(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _page(body: Any) -> AuditPage:
    return AuditPage(tuple(_entry(one) for one in body["entries"]), body["next_after"], body["has_more"])


def _entry(body: Any) -> AuditEntry:
    return AuditEntry(**{name: body.get(name) for name in AuditEntry.__slots__})
