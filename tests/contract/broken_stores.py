"""Stores with one planted bug each, to show that the contract finds them.

Not collected by itself: `test_contract_finds_bugs.py` runs it, also as a plugin, so that a bug that was found once is
not looked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from onceward.core.claim import Begin, Entry, Mark, Move, Ref, Status, Verb, Write, WriteResult
from onceward.core.outcome import Outcome
from onceward.store import Clock, Page, Reading
from onceward.store.memory import MemoryStore
from onceward.testing import StoreContract
from onceward.testing.caller import OpenStore


class BrokenStore:
    """A memory store that does everything right. Each bug replaces a method of an instance."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.inner = MemoryStore(clock)
        self.closed = False

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        return self.inner.commit(writes)

    def read(self, refs: Sequence[Ref]) -> Reading:
        return self.inner.read(refs)

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        return self.inner.scan(scope, status, after, limit)

    def purge(self, limit: int) -> int:
        return self.inner.purge(limit)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        return self.inner.lapsed(limit)

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        return self.inner.chunks(ref, version, after, limit)

    def abandon(self) -> None:
        self.inner.abandon()

    def close(self) -> None:
        self.closed = True

    def keep(self, entry: Entry) -> Entry:
        """Put an entry in place of the right one."""
        self.inner._entries[entry.ref] = entry
        return entry


def each(store: BrokenStore, change: Callable[[Write, WriteResult], WriteResult]) -> None:
    """Plant a bug in each write result."""

    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        return [change(write, result) for write, result in zip(writes, store.inner.commit(writes), strict=True)]

    store.commit = commit  # type: ignore[method-assign]  # planting a bug


def rewritten(store: BrokenStore, change: Callable[[Write], Write]) -> None:
    """Plant a bug in each write before it is decided."""
    store.commit = lambda writes: store.inner.commit([change(write) for write in writes])  # type: ignore[method-assign]


def kept_differently(store: BrokenStore, change: Callable[[Entry], Entry]) -> None:
    """Plant a bug in each entry that is written."""

    def spoil(_: Write, result: WriteResult) -> WriteResult:
        if not result.applied or result.entry is None:
            return result
        return replace(result, entry=store.keep(change(result.entry)))

    each(store, spoil)


def current(store: BrokenStore, write: Write) -> Entry | None:
    return store.inner._entries.get(Ref(write.scope, write.key))


def settles_by_key(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        entry = current(store, write)
        if isinstance(write, Move) and write.verb is Verb.SETTLE and entry is not None:
            return replace(write, version=entry.version)
        return write

    rewritten(store, change)


def repeats_what_may_not_be_repeated(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        entry = current(store, write)
        if isinstance(write, Begin) and entry is not None and entry.lapsed(store.clock()):
            store.keep(replace(entry, repeatable=True))
        return write

    rewritten(store, change)


def forgets_versions_with_the_entry(store: BrokenStore) -> None:
    def purge(limit: int) -> int:
        taken = store.inner.purge(limit)
        store.inner._last_version = max((entry.version for entry in store.inner._entries.values()), default=0)
        return taken

    store.purge = purge  # type: ignore[method-assign]


def mints_for_refusals(store: BrokenStore) -> None:
    def spoil(_: Write, result: WriteResult) -> WriteResult:
        store.inner._last_version += not result.applied
        return result

    each(store, spoil)


def marks_what_it_refuses(store: BrokenStore) -> None:
    def spoil(write: Write, result: WriteResult) -> WriteResult:
        if not result.applied and result.entry is not None:
            store.keep(replace(result.entry, write_id=write.write_id))
        return result

    each(store, spoil)


def does_not_say_what_it_found(store: BrokenStore) -> None:
    each(store, lambda _, result: replace(result, before=None))


def hides_what_refused(store: BrokenStore) -> None:
    each(store, lambda _, result: result if result.applied else replace(result, entry=None))


def forgets_the_write_id_of_renewals(store: BrokenStore) -> None:
    before: dict[Ref, str] = {}

    def spoil(write: Write, result: WriteResult) -> WriteResult:
        if not result.applied or result.entry is None:
            return result
        ref = result.entry.ref
        if isinstance(write, Move) and write.verb is Verb.RENEW:
            return replace(result, entry=store.keep(replace(result.entry, write_id=before[ref])))
        before[ref] = write.write_id
        return result

    each(store, spoil)


def reads_the_clock_for_every_write(store: BrokenStore) -> None:
    store.commit = lambda writes: [store.inner.commit([write])[0] for write in writes]  # type: ignore[method-assign]


def drops_microseconds(store: BrokenStore) -> None:
    kept_differently(store, lambda entry: replace(entry, lease_until=entry.lease_until // 1000 * 1000))


def counts_retention_from_the_beginning(store: BrokenStore) -> None:
    def change(entry: Entry) -> Entry:
        if entry.status is not Status.COMPLETED or entry.expires_at is None or entry.completed_at is None:
            return entry
        return replace(entry, expires_at=entry.expires_at - entry.completed_at + entry.created_at)

    kept_differently(store, change)


def lets_held_work_expire(store: BrokenStore) -> None:
    kept_differently(store, lambda entry: replace(entry, expires_at=entry.expires_at or entry.lease_until + 1))


def sweeps_too_early(store: BrokenStore) -> None:
    """Mutant: native expiry at the time of the entry's own, so that an expired entry reads as absent."""

    def read(refs: Sequence[Ref]) -> Reading:
        store.inner.purge(1000)
        return store.inner.read(refs)

    store.read = read  # type: ignore[method-assign]


def purges_without_a_limit(store: BrokenStore) -> None:
    def purge(limit: int) -> int:  # noqa: ARG001  # that is the bug
        return store.inner.purge(1000)

    store.purge = purge  # type: ignore[method-assign]


def purges_a_moment_too_late(store: BrokenStore) -> None:
    def purge(limit: int) -> int:
        doomed = [entry for entry in store.inner._entries.values() if entry.purgeable(store.clock() - 1)]
        for entry in doomed[:limit]:
            del store.inner._entries[entry.ref]
        return len(doomed[:limit])

    store.purge = purge  # type: ignore[method-assign]


def leaves_old_chunks(store: BrokenStore) -> None:
    old: dict[Ref, list[bytes]] = {}

    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        for write in writes:
            ref = Ref(write.scope, write.key)
            old[ref] = list(store.inner._chunks.get(ref, []))
        results = store.inner.commit(writes)
        for write, result in zip(writes, results, strict=True):
            if isinstance(write, Begin) and result.applied:
                ref = Ref(write.scope, write.key)
                store.inner._chunks[ref] = old[ref]
        return results

    store.commit = commit  # type: ignore[method-assign]


def shows_chunks_to_any_version(store: BrokenStore) -> None:
    def chunks(ref: Ref, version: int, after: int, limit: int) -> list[bytes]:  # noqa: ARG001  # that is the bug
        return store.inner._chunks.get(ref, [])[after : after + limit]

    store.chunks = chunks  # type: ignore[method-assign]


def takes_an_empty_body_for_none(store: BrokenStore) -> None:
    kept_differently(
        store, lambda entry: replace(entry, outcome=replace(entry.outcome, body=entry.outcome.body or None))
    )


def takes_a_zero_for_none(store: BrokenStore) -> None:
    kept_differently(
        store, lambda entry: replace(entry, outcome=replace(entry.outcome, code=entry.outcome.code or None))
    )


def keeps_bodies_as_text(store: BrokenStore) -> None:
    def change(entry: Entry) -> Entry:
        body = entry.outcome.body
        text = None if body is None else body.decode("utf-8", "replace").encode()
        return replace(entry, outcome=Outcome(entry.outcome.code, entry.outcome.headers, text, entry.outcome.chunks))

    kept_differently(store, change)


def folds_case(store: BrokenStore) -> None:
    rewritten(store, lambda write: replace(write, key=write.key.casefold()))


def strips_keys(store: BrokenStore) -> None:
    rewritten(store, lambda write: replace(write, key=write.key.strip() or write.key))


def joins_scope_and_key(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        scope, _, key = f"{write.scope}:{write.key}".partition(":")
        return replace(write, scope=scope, key=key)

    rewritten(store, change)


def answers_in_the_order_of_keys(store: BrokenStore) -> None:
    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        return store.inner.commit(sorted(writes, key=lambda write: (write.scope, write.key)))

    store.commit = commit  # type: ignore[method-assign]


def decides_a_batch_as_one(store: BrokenStore) -> None:
    """One refusal rolls back the whole batch."""

    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        entries, chunks = dict(store.inner._entries), {ref: list(log) for ref, log in store.inner._chunks.items()}
        results = store.inner.commit(writes)
        if all(result.applied for result in results):
            return results
        store.inner._entries, store.inner._chunks = entries, chunks
        return [
            replace(result, applied=False, entry=current(store, write))
            for write, result in zip(writes, results, strict=True)
        ]

    store.commit = commit  # type: ignore[method-assign]


def scans_by_position(store: BrokenStore) -> None:
    def scan(scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        everything = store.inner.scan(scope, status, "", 10_000).entries
        start = int(after or 0)
        page = everything[start : start + limit]
        return Page(page, str(start + limit) if start + limit < len(everything) else "")

    store.scan = scan  # type: ignore[method-assign]


def filters_after_the_page(store: BrokenStore) -> None:
    """The filter is applied to a page, and an empty page is taken for the end."""

    def scan(scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        page = store.inner.scan(scope, None, after, limit)
        entries = tuple(entry for entry in page.entries if status in (None, entry.status))
        return Page(entries, page.next if entries else "")

    store.scan = scan  # type: ignore[method-assign]


def lists_claims_whose_lease_runs(store: BrokenStore) -> None:
    def lapsed(limit: int) -> list[Entry]:
        entries = store.inner._entries.values()
        return [one for one in entries if one.status is Status.IN_PROGRESS and not one.repeatable][:limit]

    store.lapsed = lapsed  # type: ignore[method-assign]


def lists_claims_that_may_be_repeated(store: BrokenStore) -> None:
    def lapsed(limit: int) -> list[Entry]:
        return [one for one in store.inner._entries.values() if one.lapsed(store.clock())][:limit]

    store.lapsed = lapsed  # type: ignore[method-assign]


def abandons_without_checking_the_lease(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        if isinstance(write, Move) and write.verb is Verb.ABANDON:
            return replace(write, verb=Verb.ABANDON_DEAD)
        return write

    rewritten(store, change)


def takes_over_without_saying_when(store: BrokenStore) -> None:
    """A takeover does not update the time of the claim."""
    kept_differently(store, lambda entry: replace(entry, claimed_at=entry.created_at))


def lets_an_old_mark_replace_a_new_one(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        entry = current(store, write)
        if isinstance(write, Mark) and entry is not None:
            store.keep(replace(entry, recovery_seq=0))
        return write

    rewritten(store, change)


def takes_marks_by_key(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        entry = current(store, write)
        if isinstance(write, Mark) and entry is not None:
            return replace(write, version=entry.version)
        return write

    rewritten(store, change)


def loses_the_mark_in_doubt(store: BrokenStore) -> None:
    def change(entry: Entry) -> Entry:
        return replace(entry, recovery=None, recovery_seq=0) if entry.status is Status.IN_DOUBT else entry

    kept_differently(store, change)


def keeps_the_mark_of_a_free_key(store: BrokenStore) -> None:
    points: dict[Ref, tuple[str | None, int]] = {}

    def change(entry: Entry) -> Entry:
        point = points.get(entry.ref, (None, 0))
        points[entry.ref] = (entry.recovery, entry.recovery_seq)
        return entry if entry.recovery or not point[0] else replace(entry, recovery=point[0], recovery_seq=point[1])

    kept_differently(store, change)


def counts_every_failure_as_not_done(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        if isinstance(write, Move) and write.verb is Verb.FAIL:
            return replace(write, verb=Verb.NOT_DONE)
        return write

    rewritten(store, change)


def retains_forgotten_entries(store: BrokenStore) -> None:
    def change(write: Write) -> Write:
        if isinstance(write, Move) and write.verb is Verb.FORGET:
            return replace(write, retain=1_000_000)
        return write

    rewritten(store, change)


def runs_refused_keys_again(store: BrokenStore) -> None:
    kept_differently(store, lambda entry: replace(entry, refuse_until=None) if entry.expires_at else entry)


def purges_refused_keys(store: BrokenStore) -> None:
    def purge(limit: int) -> int:
        for entry in list(store.inner._entries.values()):
            if entry.expired(store.clock()):
                store.keep(replace(entry, refuse_until=None))
        return store.inner.purge(limit)

    store.purge = purge  # type: ignore[method-assign]


def keeps_results_that_never_expire(store: BrokenStore) -> None:
    kept_differently(store, lambda entry: entry if entry.expires_at else replace(entry, refuse_until=None))


def pretends_after_closing(store: BrokenStore) -> None:
    def commit(writes: Sequence[Write]) -> list[WriteResult]:
        if not store.closed:
            return store.inner.commit(writes)
        return [replace(result, applied=True) for result in MemoryStore(store.clock).commit(writes)]

    store.commit = commit  # type: ignore[method-assign]


BUGS = [
    settles_by_key,
    repeats_what_may_not_be_repeated,
    forgets_versions_with_the_entry,
    mints_for_refusals,
    marks_what_it_refuses,
    does_not_say_what_it_found,
    hides_what_refused,
    forgets_the_write_id_of_renewals,
    reads_the_clock_for_every_write,
    drops_microseconds,
    counts_retention_from_the_beginning,
    lets_held_work_expire,
    sweeps_too_early,
    purges_without_a_limit,
    purges_a_moment_too_late,
    leaves_old_chunks,
    shows_chunks_to_any_version,
    takes_an_empty_body_for_none,
    takes_a_zero_for_none,
    keeps_bodies_as_text,
    folds_case,
    strips_keys,
    joins_scope_and_key,
    answers_in_the_order_of_keys,
    decides_a_batch_as_one,
    scans_by_position,
    filters_after_the_page,
    lists_claims_whose_lease_runs,
    lists_claims_that_may_be_repeated,
    abandons_without_checking_the_lease,
    takes_over_without_saying_when,
    lets_an_old_mark_replace_a_new_one,
    takes_marks_by_key,
    loses_the_mark_in_doubt,
    keeps_the_mark_of_a_free_key,
    counts_every_failure_as_not_done,
    retains_forgotten_entries,
    runs_refused_keys_again,
    purges_refused_keys,
    keeps_results_that_never_expire,
    pretends_after_closing,
]


@pytest.mark.parametrize("bug", [None, *BUGS], ids=lambda bug: bug.__name__ if bug else "none")
class TestBroken(StoreContract):
    @pytest.fixture
    def make_store(self, bug: Callable[[BrokenStore], None] | None) -> OpenStore:
        opened: list[BrokenStore] = []

        def make(clock: Clock) -> BrokenStore:
            # All openings share the data; only what an opening itself does is its own.
            opened.append(BrokenStore(clock))
            opened[-1].inner = opened[0].inner
            opened[-1].inner._clock = clock
            if bug is not None:
                bug(opened[-1])
            return opened[-1]

        return make


_found: set[str] = set()


def _bug_of(nodeid: str) -> str:
    return nodeid.rpartition("[")[2].rstrip("]").rpartition("-")[2]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _found.add(_bug_of(report.nodeid))


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Return True to skip a test whose bug was already found."""
    return True if _bug_of(item.nodeid) in _found else None
