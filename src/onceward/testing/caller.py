"""Caller of a bare store: writes with default values, each result checked against the claim state machine."""

# ruff: noqa: S101  # These are tests; pytest rewrites their asserts.

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from onceward.core.claim import Append, Begin, Entry, Mark, Move, Ref, Status, Verb, Write, WriteResult, apply
from onceward.core.outcome import NOTHING, Outcome
from onceward.store import Clock, Store
from onceward.testing.clock import SECOND

SCOPE = "tests"
KEY = "the-key"
LEASE_SECONDS = 30
RETAIN_SECONDS = 86_400
LEASE = LEASE_SECONDS * SECOND
RETAIN = RETAIN_SECONDS * SECOND

# Opens the store under test with this clock; see `onceward.testing.contract`.
OpenStore: TypeAlias = Callable[[Clock], Store]

_write_ids = itertools.count(1)


def write_id() -> str:
    """Return an id that is unique in this process, in the format of the ledger's own ids."""
    return f"{next(_write_ids):016x}"


def begin(key: str = KEY, scope: str = SCOPE, *, repeatable: bool = True, fingerprint: str = "f" * 64) -> Begin:
    return Begin(scope, key, write_id(), fingerprint, "boot/1/2/3", repeatable, LEASE, RETAIN, "user", "POST /x")


def move(verb: Verb, version: int, key: str = KEY, scope: str = SCOPE, outcome: Outcome = NOTHING) -> Move:
    retain = 0 if verb in (Verb.RELEASE, Verb.FORGET) else RETAIN
    return Move(scope, key, write_id(), verb, version, LEASE, retain, outcome)


def append(version: int, seq: int, *chunks: bytes, key: str = KEY, scope: str = SCOPE) -> Append:
    return Append(scope, key, write_id(), version, seq, chunks)


def mark(version: int, seq: int, text: str, *, key: str = KEY, scope: str = SCOPE) -> Mark:
    return Mark(scope, key, write_id(), version, seq, text)


class Caller:
    """Caller that commits to a store and checks every result.

    A result must be what `core.claim.apply` returns for the entry that was stored before, and a read must return the
    same entry afterwards. So every test of the contract also tests rules 2 and 3.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def commit(self, *writes: Write) -> list[WriteResult]:
        """Commit one batch and check its results."""
        refs = [Ref(write.scope, write.key) for write in writes]
        before = self.store.read(refs).entries
        results = self.store.commit(writes)
        after = self.store.read(refs).entries
        assert len(results) == len(writes)
        for write, found, result, there in zip(writes, before, results, after, strict=True):
            check(write, found, result)
            assert there == result.entry
        return results

    def one(self, write: Write) -> WriteResult:
        return self.commit(write)[0]

    def begin(self, key: str = KEY, *, repeatable: bool = True, **others: object) -> WriteResult:
        """Commit a begin. `others` are further fields of the write, by name."""
        return self.one(replace(begin(key, repeatable=repeatable), **others))  # type: ignore[arg-type]

    def hold(self, key: str = KEY, *, repeatable: bool = True) -> Entry:
        """Claim the key, which must be free, and return its entry."""
        return entry_of(self.begin(key, repeatable=repeatable), applied=True)

    def move(self, verb: Verb, version: int, key: str = KEY, **others: object) -> WriteResult:
        """Commit a move. `others` are further fields of the write, by name."""
        return self.one(replace(move(verb, version, key), **others))  # type: ignore[arg-type]

    def append(self, version: int, seq: int, *chunks: bytes, key: str = KEY) -> WriteResult:
        return self.one(append(version, seq, *chunks, key=key))

    def mark(self, version: int, seq: int, text: str, *, key: str = KEY) -> WriteResult:
        return self.one(mark(version, seq, text, key=key))

    def read(self, key: str = KEY, scope: str = SCOPE) -> Entry | None:
        return self.store.read([Ref(scope, key)]).entries[0]

    def chunks(self, version: int, after: int = 0, limit: int = 100, key: str = KEY) -> list[bytes]:
        return self.store.chunks(Ref(SCOPE, key), version, after, limit)

    def scan(self, scope: str | None = SCOPE, status: Status | None = None, limit: int = 100) -> list[Entry]:
        """Return the entries of all pages."""
        entries: list[Entry] = []
        after = ""
        while True:
            page = self.store.scan(scope, status, after, limit)
            assert len(page.entries) <= limit
            entries += page.entries
            if not page.next:
                return entries
            assert page.next != after, "scan returned the same cursor twice, so it would never end"
            after = page.next


def check(write: Write, before: Entry | None, result: WriteResult) -> None:
    """Check one result against the claim state machine, for the entry that was stored before."""
    version = result.entry.version if result.entry is not None else 0
    expected = apply(before, write, result.now, version)
    assert result.applied == (expected is not None)
    assert result.entry == (before if expected is None else expected)
    assert not result.locked
    if expected is not None:
        assert result.before is (None if before is None else before.found_as(result.now))
        assert before is None or expected.version >= before.version


def entry_of(result: WriteResult, *, applied: bool) -> Entry:
    """Return the entry of a result. The entry must exist, and the write must have been applied or refused as given."""
    assert result.applied is applied
    assert result.entry is not None
    return result.entry


def versions_of(results: Sequence[WriteResult]) -> list[int]:
    return [result.entry.version for result in results if result.entry is not None]
