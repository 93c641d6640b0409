"""The entry that a store keeps for one key, with its identity and its status."""

from __future__ import annotations

import enum
import json
from dataclasses import replace
from typing import Any, NamedTuple

from onceward.core.outcome import NOTHING, Outcome
from onceward.core.record import record

SECOND = 1_000_000
# `Entry.key_basis` is this many times the id of the secret, plus the number of attempts that did nothing. Both parts
# together fit into 31 bits.
SECRET_UNIT = 2**20


class Status(enum.StrEnum):
    """The status of an entry, in the words of the HTTP contract."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"


# The status word of completed entries whose retention is over and whose key is refused (`Entry.expired`). Not stored.
EXPIRED = "expired"
# The status words of the HTTP contract, the command line and the console.
WIRE_STATUSES = (*(one.value for one in Status), EXPIRED)


class Ref(NamedTuple):
    """The identity of an entry: its scope and its key."""

    scope: str
    key: str


@record(frozen=True, slots=True)
class Entry:
    """The stored state of one key. Times are microseconds since 1970 by the store's clock.

    Attributes:
        scope: The part of the identity that separates layers, tenants and principals. It begins with the namespace.
        key: The name that the caller gave to the work.
        fingerprint: The hash of the arguments.
        status: Held (`in_progress`), settled (`completed`), `failed` or `in_doubt`.
        version: The fencing token of the claim.
        attempt: The number of times that the key was claimed.
        write_id: The id of the last write that was applied.
        holder: The process that has, or had, the claim.
        repeatable: Whether the effect may run again after its holder disappeared.
        lease_until: The time at which the lease of a held claim ends.
        expires_at: The time after which the entry may be purged, or None.
        created_at: The time of the first attempt.
        completed_at: The time at which the entry was settled or failed by its holder or by a verdict.
        user_id: A label: the user on whose behalf the effect runs.
        endpoint: A label: where the key was used.
        note: The reason for the last failure, doubt or verdict.
        outcome: The recorded result.
        claimed_at: The time at which this version was claimed. Renewals do not change it. Rows of schema 1 do not have
            it and show the time of their first attempt instead.
        recovery: The stored text of the recovery point: JSON, or an encrypted text. None if there is none.
        recovery_seq: The number of the recovery point, or 0.
        refuse_until: The time until which the key is refused after its retention, or None. If the entry never expires,
            the time from which purge may drop its result.
        key_basis: The basis of `key_for`, stored as `not_done_count`: see `not_done_count` and `secret_id`.
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
    recovery: str | None = None
    recovery_seq: int = 0
    refuse_until: int | None = None
    key_basis: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.scope, self.key)

    @property
    def recovery_point(self) -> Any:
        """The last value that a holder recorded with `recovery_point`, or None. Encrypted values are shown as bytes."""
        if self.recovery is None:
            return None
        try:
            return json.loads(self.recovery)
        except (ValueError, RecursionError):
            return self.recovery.encode()

    @property
    def not_done_count(self) -> int:
        """The number of attempts that certainly did nothing: they ended in `NotDone` or were judged not committed."""
        return self.key_basis % SECRET_UNIT

    @property
    def secret_id(self) -> int:
        """The id of the secret that `key_for` uses for this entry, or 0 for none."""
        return self.key_basis // SECRET_UNIT

    def absent(self, now: int) -> bool:
        """Return whether the entry reads as absent: completed or failed, with its retention over.

        Args:
            now: The time in microseconds since 1970, by the store's clock.
        """
        return (
            self.status in FINISHED
            and self.expires_at is not None
            and self.expires_at <= now
            and (self.refuse_until is None or self.refuse_until <= now)
        )

    def expired(self, now: int) -> bool:
        """Return whether the retention is over and the key is refused.

        Args:
            now: The time in microseconds since 1970, by the store's clock.
        """
        expires_at, refuse_until = self.expires_at, self.refuse_until
        if self.status is not Status.COMPLETED or expires_at is None or refuse_until is None or refuse_until <= now:
            return False
        # Purge moves `expires_at` to `refuse_until` when it drops the result.
        return expires_at <= now or expires_at == refuse_until

    @property
    def abandoned(self) -> bool:
        """True if someone other than the holder ended the claim, so it is unknown what the holder had done by then."""
        return self.status is Status.FAILED and self.completed_at is None

    def found_as(self, now: int) -> Status | None:
        """Return the status that an applied write found, for `WriteResult.before`.

        An abandoned claim counts as in progress: the next holder must know that something may have been done.

        Args:
            now: The time in microseconds since 1970, by the store's clock.

        Returns:
            The status, or None if the entry reads as absent.
        """
        if self.status is Status.IN_PROGRESS:
            return self.status
        if self.absent(now):
            return None
        return Status.IN_PROGRESS if self.abandoned else self.status

    def lapsed(self, now: int) -> bool:
        """Return whether the claim is in progress and its lease has ended.

        Args:
            now: The time in microseconds since 1970, by the store's clock.
        """
        return self.status is Status.IN_PROGRESS and self.lease_until <= now

    def purgeable(self, now: int) -> bool:
        """Return whether purge may delete the entry.

        Purge may delete finished entries past their retention, and repeatable claims past lease and retention. An entry
        that refuses its key stays until it no longer does.

        Args:
            now: The time in microseconds since 1970, by the store's clock.
        """
        return (
            self.expires_at is not None
            and self.expires_at <= now
            and (self.refuse_until is None or self.refuse_until <= now)
        )

    def droppable(self, now: int) -> bool:
        """Return whether purge must drop the result and the recovery point, and keep the rest (see `without_result`).

        Args:
            now: The time in microseconds since 1970, by the store's clock.
        """
        if self.refuse_until is None:
            return False
        if self.expires_at is None:
            return self.refuse_until <= now
        return self.expires_at <= now < self.refuse_until

    def without_result(self) -> Entry:
        """Return the entry as purge leaves it when it drops the result.

        The times change so that purge does not find the entry again before it may delete it.
        """
        until = None if self.expires_at is None else self.refuse_until
        return replace(self, outcome=NOTHING, recovery=None, recovery_seq=0, expires_at=until, refuse_until=until)


def wire_status(entry: Entry, now: int) -> str:
    """Return the status word of an entry as users see it: one of `WIRE_STATUSES`.

    Args:
        entry: The entry.
        now: The time in microseconds since 1970, by the store's clock.
    """
    return EXPIRED if entry.expired(now) else entry.status.value


FINISHED = frozenset({Status.COMPLETED, Status.FAILED})
UNFINISHED = frozenset({Status.IN_PROGRESS, Status.IN_DOUBT})
