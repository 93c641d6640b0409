"""Stores: the contract between a ledger and its back end, and four implementations (memory, SQLite, PostgreSQL, Redis).

Not here: what a write means (`core/claim.py`), and the callers of a store (`ledger/`).
Start with the nine rules below, then read `memory.py`. `dispatch/` is how all callers of a process share one store.

THE CONTRACT. A store keeps entries and commits batches of guarded writes. It is synchronous and used by one thread at a
time: the dispatcher (`store/dispatch/batcher.py`) collects writes from every event loop and thread of the process, and
commits one batch after the other. To write your own store, implement the methods of `Store` and run
`onceward.testing.StoreContract` against it. Each rule has its tests there, under its number.

 1. Atomic. Each write of a batch is applied completely or not at all, independently of the other writes, and is durable
    before `commit` returns.
 2. Guarded. A write is applied exactly when `core.claim.apply` accepts it for the stored entry.
 3. Informative. A refused write returns the entry that refused it. A write that the entry refuses on the first read
    takes no lock, writes nothing and uses no version.
 4. The versions of one key strictly increase, even across release, expiry and purge.
 5. The store's clock is the only clock, and is read once per batch. A `clock` passed when the store is opened replaces
    it, so that tests can pin the time. Native expiry, where a store has it, only cleans up: it is set later than the
    entry's own expiry.
 6. Retention counts from settle or fail. A held or in-doubt entry never reads as absent. Only purge deletes: finished
    entries past `expires_at`, and abandoned repeatable ones past lease and retention. An entry that refuses its key
    after that, or never expires, only loses its result and its recovery point. `lapsed` returns the claims that are not
    repeatable and whose lease is over, at a cost that grows only with their number.
 7. Bounded. The limits below are checked before a write is queued. A page has at most 500 entries.
 8. Three results: applied, refused, or `StoreUnavailable`, which means "may or may not have been applied". The entry
    stores the id of its last write, so that the result of a repeated write shows whether the first one was applied.
 9. Never fail open. A store that cannot decide raises. It never reports a write as applied when it was not.

A batch has at most one write of each key. If a batch cannot be committed because of the data of some write, or because
of a lock, the store raises `BatchFailed` and applies nothing of it. The batcher then halves the batch until the write
that causes the failure is alone.

A store that waits for a server may also have `encode_batch` (`store/dispatch/inflight.py`). Event loops then send
batches themselves and continue with other work until the results arrive. `onceward.testing.PipelinedStore` runs this
contract that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from onceward.core.claim import Entry, Mark, Move, Ref, Status, Write, WriteResult
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
    "bind",
    "caller_connection",
    "check",
    "claim_cache",
    "durable",
    "failure_log",
    "failure_streak",
    "forks",
    "memory",
    "needs_new_schema",
    "open",
    "write_id",
]

# One page of `scan`, `chunks` or `purge`: a result that fits in memory, and a transaction that stays short.
PAGE_MAX = 500
# One batch: large enough that hundreds of writes share one fsync, small enough to complete within milliseconds.
BATCH_WRITES_MAX = 512
BATCH_BYTES_MAX = 4 * 1024 * 1024
# The schema that this version writes, and the oldest schema whose processes may use the store at the same time. That
# is raised to `SCHEMA_VERSION` by the first write that `needs_new_schema`.
SCHEMA_VERSION = 2
OLDEST_SCHEMA = 1

Clock: TypeAlias = Callable[[], int]


class BatchFailed(WriteRefused):
    """The batch was rolled back because of one of its writes; smaller batches may succeed.

    Args:
        message: The message of the exception.
        transient: Whether the same write may succeed later, because it only could not get a lock.
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


@record(frozen=True, slots=True)
class Schema:
    """The schema numbers that a store keeps. All are 0 before a ledger is created.

    Attributes:
        version: The number that processes of schema 1 compare with their own. It has the same value as
            `readable_from`.
        readable_from: The oldest schema whose processes may use the store. Processes of later schemas compare this.
        upgraded_to: The newest schema to which the store was upgraded.
    """

    version: int = 0
    readable_from: int = 0
    upgraded_to: int = 0

    @classmethod
    def stored(cls, version: int, readable_from: int | None = None, upgraded_to: int | None = None) -> Schema:
        """Return the schema from its stored numbers. A ledger of schema 1 has only the first number, which is 1."""
        if readable_from is None or upgraded_to is None:
            return cls(version, readable_from=1, upgraded_to=1)
        return cls(version, readable_from, upgraded_to)

    @property
    def is_current(self) -> bool:
        return self.upgraded_to >= SCHEMA_VERSION

    def check(self) -> None:
        """Raise `SchemaTooNew` if only newer versions of Onceward may use the store, or its numbers conflict."""
        needed = max(self.readable_from, self.version)
        if needed > SCHEMA_VERSION or self.version > self.readable_from:
            raise SchemaTooNew(
                f"the store needs a version of Onceward that supports schema {needed}; this one supports {SCHEMA_VERSION};"
                " upgrade Onceward"
            )


def needs_new_schema(write: Write) -> bool:
    """Return whether processes of schema 1 would lose what this write stores, so that they must not use the store.

    They would drop a recovery point when they take over, and run a refused key again. The count of attempts that did
    nothing does not need it: if they drop that, a provider gets a key that it never acted on.
    """
    return isinstance(write, Mark) or (isinstance(write, Move) and write.refuse != 0)


@record(frozen=True, slots=True)
class Reading:
    """Entries as they were at one time of the store's clock, in the order of the refs that were read."""

    now: int
    entries: tuple[Entry | None, ...]


@record(frozen=True, slots=True)
class Page:
    """A page of entries.

    Attributes:
        entries: The entries.
        next: The cursor that continues after them, or "" if there are no more.
    """

    entries: tuple[Entry, ...]
    next: str


class Store(Protocol):
    """The interface of a back end. A store connects on first use, and again after a lost connection."""

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Decide every write and return the results in the order of the writes.

        Args:
            writes: A batch, with at most one write of each key.

        Returns:
            One result for each write.

        Raises:
            StoreUnavailable: If the writes may or may not have been applied.
            BatchFailed: If nothing was applied because of one of the writes.
        """
        ...

    def read(self, refs: Sequence[Ref]) -> Reading:
        """Return the entries as stored, including expired ones (see `Entry.absent`), and None for those not stored.

        Args:
            refs: The identities of the entries.

        Returns:
            The entries in the order of the refs, and the time.
        """
        ...

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        """Return a page of entries, in an order that the store chooses.

        An entry that exists during the whole scan appears in it exactly once.

        Args:
            scope: Only entries of this scope, or None for all.
            status: Only entries with this status, or None for all.
            after: The cursor of the previous page, or "".
            limit: The most entries to return.

        Returns:
            The page.
        """
        ...

    def purge(self, limit: int) -> int:
        """Delete at most `limit` entries that rule 6 allows, with their chunks, or drop their results.

        Args:
            limit: The most entries to delete or to change.

        Returns:
            The number of entries that were deleted or changed.
        """
        ...

    def lapsed(self, limit: int) -> Sequence[Entry]:
        """Return claims in progress that are not repeatable and whose lease has lapsed, the oldest lease first.

        Args:
            limit: The most claims to return.

        Returns:
            The entries of the claims.
        """
        ...

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        """Return the chunks of a claim, in order.

        Args:
            ref: The identity of the entry.
            version: The version of the claim. With another version, nothing is returned.
            after: The number of the chunk after which to start.
            limit: The most chunks to return.

        Returns:
            The chunks.
        """
        ...

    def abandon(self) -> None:
        """Forget connections inherited through a fork without using them, and close those that this process opened.

        The next use opens new ones.
        """
        ...

    def close(self) -> None:
        """Release all resources. Safe to call twice, and before first use."""
        ...
