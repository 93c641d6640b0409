"""One caller of a bare store: single writes with sensible values, each held against the claim machine."""

# ruff: noqa: S101  # These are tests; pytest rewrites their asserts.

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from onceward.core.claim import Answer, Append, Begin, Entry, Move, Ref, Status, Verb, Write, apply
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
    """Unlike any other of this process, in the form the ledger gives them."""
    return f"{next(_write_ids):016x}"


def begin(key: str = KEY, scope: str = SCOPE, *, repeatable: bool = True, fingerprint: str = "f" * 64) -> Begin:
    return Begin(scope, key, write_id(), fingerprint, "boot/1/2/3", repeatable, LEASE, RETAIN, "user", "POST /x")


def move(verb: Verb, version: int, key: str = KEY, scope: str = SCOPE, outcome: Outcome = NOTHING) -> Move:
    retain = 0 if verb is Verb.RELEASE else RETAIN
    return Move(scope, key, write_id(), verb, version, LEASE, retain, outcome)


def append(version: int, seq: int, *chunks: bytes, key: str = KEY, scope: str = SCOPE) -> Append:
    return Append(scope, key, write_id(), version, seq, chunks)


class Caller:
    """Commits to a store and checks every answer: it must be what `core.claim.apply` says of the entry that was there,
    and reading must show it afterwards. So every test of the contract is also a test of rules 2 and 3.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def commit(self, *writes: Write) -> list[Answer]:
        """One batch, checked."""
        refs = [Ref(write.scope, write.key) for write in writes]
        before = self.store.read(refs).entries
        answers = self.store.commit(writes)
        after = self.store.read(refs).entries
        assert len(answers) == len(writes)
        for write, found, answer, there in zip(writes, before, answers, after, strict=True):
            check(write, found, answer)
            assert there == answer.entry
        return answers

    def one(self, write: Write) -> Answer:
        return self.commit(write)[0]

    def begin(self, key: str = KEY, *, repeatable: bool = True, **others: object) -> Answer:
        """`others` are further fields of the write, under their own names."""
        return self.one(replace(begin(key, repeatable=repeatable), **others))  # type: ignore[arg-type]

    def hold(self, key: str = KEY, *, repeatable: bool = True) -> Entry:
        """A claim on the key, which must be free."""
        return entry_of(self.begin(key, repeatable=repeatable), applied=True)

    def move(self, verb: Verb, version: int, key: str = KEY, **others: object) -> Answer:
        """As `begin`."""
        return self.one(replace(move(verb, version, key), **others))  # type: ignore[arg-type]

    def append(self, version: int, seq: int, *chunks: bytes, key: str = KEY) -> Answer:
        return self.one(append(version, seq, *chunks, key=key))

    def read(self, key: str = KEY, scope: str = SCOPE) -> Entry | None:
        return self.store.read([Ref(scope, key)]).entries[0]

    def chunks(self, version: int, after: int = 0, limit: int = 100, key: str = KEY) -> list[bytes]:
        return self.store.chunks(Ref(SCOPE, key), version, after, limit)

    def scan(self, scope: str | None = SCOPE, status: Status | None = None, limit: int = 100) -> list[Entry]:
        """Every page, one after the other."""
        entries: list[Entry] = []
        after = ""
        while True:
            page = self.store.scan(scope, status, after, limit)
            assert len(page.entries) <= limit
            entries += page.entries
            if not page.next:
                return entries
            assert page.next != after, "the scan does not move on"
            after = page.next


def check(write: Write, before: Entry | None, answer: Answer) -> None:
    """Hold one answer against the claim machine, for the entry that was there before."""
    version = answer.entry.version if answer.entry is not None else 0
    expected = apply(before, write, answer.now, version)
    assert answer.applied == (expected is not None)
    assert answer.entry == (before if expected is None else expected)
    assert not answer.locked
    if expected is not None:
        assert answer.before is (None if before is None else before.found_as(answer.now))
        assert before is None or expected.version >= before.version


def entry_of(answer: Answer, *, applied: bool) -> Entry:
    """The entry of an answer that must be there."""
    assert answer.applied is applied
    assert answer.entry is not None
    return answer.entry


def versions_of(answers: Sequence[Answer]) -> list[int]:
    return [answer.entry.version for answer in answers if answer.entry is not None]
