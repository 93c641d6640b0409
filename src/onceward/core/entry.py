"""What a store keeps of one key: the entry, its identity and its status."""

from __future__ import annotations

import enum
from typing import NamedTuple

from onceward.core.outcome import NOTHING, Outcome
from onceward.core.record import record

SECOND = 1_000_000


class Status(enum.StrEnum):
    """The wire words of the seeds."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"


class Ref(NamedTuple):
    """The identity of an entry."""

    scope: str
    key: str


@record(frozen=True, slots=True)
class Entry:
    """What a store keeps of one key.

    `claimed_at` is the time at which this version was claimed: renewals leave it alone. Rows of schema 1 do not have it;
    they show the time of their first attempt instead.
    """

    scope: str
    key: str
    fingerprint: str
    status: Status
    version: int
    attempt: int
    write_id: str
    holder: str
    repeatable: bool
    lease_until: int
    expires_at: int | None
    created_at: int
    completed_at: int | None = None
    user_id: str = ""
    endpoint: str = ""
    note: str = ""
    outcome: Outcome = NOTHING
    claimed_at: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.scope, self.key)

    def absent(self, now: int) -> bool:
        """Completed and failed entries read as absent once their retention is over; others never do."""
        return self.status in FINISHED and self.expires_at is not None and self.expires_at <= now

    @property
    def abandoned(self) -> bool:
        """Failed because someone else ended it: what its holder had done by then, nobody knows."""
        return self.status is Status.FAILED and self.completed_at is None

    def found_as(self, now: int) -> Status | None:
        """What a write that is applied found here, for `Answer.before`. An abandoned claim counts as one in progress: whoever
        comes next has to know that something may have been done.
        """
        if self.status is Status.IN_PROGRESS:
            return self.status
        if self.absent(now):
            return None
        return Status.IN_PROGRESS if self.abandoned else self.status

    def lapsed(self, now: int) -> bool:
        return self.status is Status.IN_PROGRESS and self.lease_until <= now

    def purgeable(self, now: int) -> bool:
        """Finished entries past their retention, and abandoned repeatable ones past lease and retention."""
        return self.expires_at is not None and self.expires_at <= now


FINISHED = frozenset({Status.COMPLETED, Status.FAILED})
UNFINISHED = frozenset({Status.IN_PROGRESS, Status.IN_DOUBT})
