"""The last checks of idempotency keys in this process, in memory: a replay writes nothing, so nothing else knows of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from onceward.hub.db.timestamps import now_text
from onceward.hub.web.request_log import current_request_id

# About a minute of a busy hub, in less than a megabyte.
CHECKS_MAX = 2000


@dataclass(frozen=True, slots=True)
class RecentCheck:
    """One check of a key.

    Attributes:
        at: The time of the check.
        scope: The ledger scope, without the namespace.
        key: The whole key.
        endpoint: The method and path of the request.
        user: The principal.
        status: The result, as in the metric `idempotency_check_total`.
        replayed: Whether the client got a stored response.
        request_id: The id of the request, as in the log.
    """

    at: str
    scope: str
    key: str
    endpoint: str
    user: str
    status: str
    replayed: bool
    request_id: str


class CheckRing:
    """Ring of the last checks."""

    def __init__(self, checks_max: int = CHECKS_MAX) -> None:
        self._checks: deque[RecentCheck] = deque(maxlen=checks_max)

    def add(self, scope: str, key: str, *, endpoint: str, user: str, status: str, replayed: bool) -> None:
        """Add a check; the oldest one is dropped if the ring is full."""
        request_id = current_request_id()
        self._checks.append(RecentCheck(now_text(), scope, key, endpoint, user, status, replayed, request_id))

    def of(self, scope: str, key: str, limit: int = 20) -> list[RecentCheck]:
        """Return the checks of one operation, newest first."""
        found: list[RecentCheck] = []
        for check in reversed(self._checks):
            if check.key == key and check.scope == scope:
                found.append(check)
                if len(found) == limit:
                    break
        return found
