"""THE CONTRACT. A store keeps entries and answers batches of guarded writes. Four ship with Onceward; yours may too.

A store is synchronous and used by one thread at a time: the batcher (`store/batch.py`) owns that thread, gathers
writes from every loop and thread of the process, and hands over one batch after the other. Implement these methods,
then run `onceward.testing.StoreContract` against it. Each rule below has its tests there, under its number.

 1. Atomic. Each write of a batch is applied whole or not at all, independently of its neighbours, and is durable
    before `commit` returns.
 2. Guarded. A write is applied exactly when `core.claim.apply` says so for the entry that is there.
 3. Informative. A refused write returns the entry that refused it, and one that its entry refuses at first sight
    takes no lock, writes nothing and uses up no version.
 4. Versions of one key strictly increase, across release, expiry and purge.
 5. The store is the only clock, read once per batch; a `clock` given at opening replaces it (tests pin time so).
    Native expiry, where a store has it, is only a sweeper set later than the entry's own.
 6. Retention counts from settle or fail. A held or in-doubt entry never reads as absent; only purge deletes: finished
    entries past `expires_at`, and abandoned repeatable ones past lease and retention. `lapsed` shows the claims that
    may not be repeated and whose lease is over, at a cost that grows with these alone.
 7. Bounded. The limits below are checked before a write is queued; a page holds at most 500 entries.
 8. Three endings: applied, refused, or `StoreUnavailable`, which means "may or may not have been applied". The
    entry keeps the id of its last write, so that the answer to a repeated write tells.
 9. Never fail open. A store that cannot decide raises; it never answers that a write was applied when it was not.

A batch holds at most one write of each key. A batch that cannot be committed because of the data of some write (or a
lock that it could not get) raises `BatchFailed`, and nothing of it was applied: the batcher halves it until the
culprit stands alone.

A store that waits for a server may also have `pack` (`store/flight.py`): event loops then send batches themselves and go
on with other work until the answers come. `onceward.testing.FlownStore` runs this contract that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from onceward.core.claim import Answer, Entry, Ref, Status, Write
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX
from onceward.core.record import record
from onceward.errors import SchemaTooNew, WriteRefused

__all__ = [
    "BATCH_BYTES_MAX",
    "BATCH_WRITES_MAX",
    "CHUNK_BYTES_MAX",
    "INLINE_BYTES_MAX",
    "OLDEST_SCHEMA",
    "PAGE_MAX",
    "SCHEMA_VERSION",
    "BatchFailed",
    "Clock",
    "Page",
    "Reading",
    "Schema",
    "Store",
]

# One page of `scan`, `chunks` or `purge`: an answer that fits in memory and a transaction that stays short.
PAGE_MAX = 500
# One batch: large enough that a commit's fsync is shared by hundreds, small enough to answer within milliseconds.
BATCH_WRITES_MAX = 512
BATCH_BYTES_MAX = 4 * 1024 * 1024
# What this version writes, and the oldest schema whose processes may use it at the same time.
SCHEMA_VERSION = 2
OLDEST_SCHEMA = 1

Clock: TypeAlias = Callable[[], int]


class BatchFailed(WriteRefused):
    """The batch was rolled back whole because of something in it; smaller batches may succeed.

    `transient` says that the same write may succeed later (a lock it could not get), alone as it stands.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


@record(frozen=True, slots=True)
class Schema:
    """The numbers that a store keeps of its own layout; all of them 0 where there is no ledger yet.

    `version` is what processes of schema 1 compare with their own number. It says the same as `readable_from`, which
    later ones compare: the oldest schema whose processes may use the store. `upgraded_to` is the newest it has.
    """

    version: int = 0
    readable_from: int = 0
    upgraded_to: int = 0

    @classmethod
    def stored(cls, version: int, readable_from: int | None = None, upgraded_to: int | None = None) -> Schema:
        """A ledger of schema 1 has the first number alone, and it is 1."""
        if readable_from is None or upgraded_to is None:
            return cls(version, readable_from=1, upgraded_to=1)
        return cls(version, readable_from, upgraded_to)

    @property
    def is_current(self) -> bool:
        return self.upgraded_to >= SCHEMA_VERSION

    def check(self) -> None:
        """Refuse what a newer Onceward wrote for newer ones alone, and a number that none of ours has written."""
        needed = max(self.readable_from, self.version)
        if needed > SCHEMA_VERSION or self.version > self.readable_from:
            raise SchemaTooNew(
                f"the store needs an Onceward that knows schema {needed} or later; this one knows {SCHEMA_VERSION}:"
                " upgrade Onceward"
            )


@record(frozen=True, slots=True)
class Reading:
    """Entries as they were at one moment of the store's clock, in the order they were asked for."""

    now: int
    entries: tuple[Entry | None, ...]


@record(frozen=True, slots=True)
class Page:
    """Some entries, and the cursor that continues after them ("" when there are no more)."""

    entries: tuple[Entry, ...]
    next: str


class Store(Protocol):
    """What the batcher needs of a back end. Connecting happens on first use, and again after a lost connection."""

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        """Decide every write; the answers are in the order of the writes."""
        ...

    def read(self, refs: Sequence[Ref]) -> Reading:
        """The entries as stored, expired ones included: `Entry.absent` tells."""
        ...

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        """Entries in an order of the store's own; one that exists throughout a scan appears exactly once in it."""
        ...

    def purge(self, limit: int) -> int:
        """Delete at most `limit` entries that rule 6 allows, with their chunks; say how many."""
        ...

    def lapsed(self, limit: int) -> Sequence[Entry]:
        """At most `limit` claims in progress that may not be repeated and whose lease has lapsed, the oldest lease first."""
        ...

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        """The chunks of this claim that follow number `after`, in order."""
        ...

    def abandon(self) -> None:
        """Forget connections inherited through a fork without touching them; the next use opens anew."""
        ...

    def close(self) -> None:
        """Let go of everything. Safe to call twice, and before first use."""
        ...
