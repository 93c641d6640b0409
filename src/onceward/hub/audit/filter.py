"""Filters of the audit log: by principal, action and time."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from sqlalchemy import Select, or_

from onceward.core.json_text import refused
from onceward.hub.db.tables import audit_log
from onceward.hub.db.timestamps import time_text

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_EXPECTED = "must be a date such as 2031-05-01, or a time with a zone such as 2031-05-01T08:00:00Z"


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Conditions that a row must meet. Empty ones are met by every row.

    Attributes:
        principal: The principal, exactly.
        action: The action, such as `claim.resolve`, or only its first part, such as `claim`.
        since: The earliest time, as stored.
        until: The first time that is too late, as stored.
    """

    principal: str = ""
    action: str = ""
    since: str = ""
    until: str = ""

    def apply(self, query: Select[tuple[object, ...]]) -> Select[tuple[object, ...]]:
        """Return the query with the conditions."""
        columns = audit_log.c
        if self.principal:
            query = query.where(columns.principal == self.principal)
        if self.action:
            is_kind = columns.action.startswith(f"{self.action}.", autoescape=True)
            query = query.where(or_(columns.action == self.action, is_kind))
        if self.since:
            query = query.where(columns.created_at >= self.since)
        if self.until:
            query = query.where(columns.created_at < self.until)
        return query


def audit_filter(principal: str = "", action: str = "", since: str = "", until: str = "") -> AuditFilter:
    """Return the filter for these texts; raise `InvalidInput` for a text that is not a time.

    A date without a time is that whole day in UTC: `since` begins with it, and `until` includes it.
    """
    return AuditFilter(principal, action, _parse_time("since", since), _parse_time("until", until, whole_day=True))


def _parse_time(name: str, text: str, *, whole_day: bool = False) -> str:
    if not text:
        return ""
    try:
        found = datetime.datetime.fromisoformat(text)
        if _DATE.fullmatch(text):
            return time_text(found.replace(tzinfo=datetime.UTC) + datetime.timedelta(days=1 if whole_day else 0))
        if found.tzinfo is not None:
            return time_text(found)
    except (ValueError, OverflowError):
        pass
    raise refused(name, _EXPECTED)
