"""Every store behaves like the memory store: the same random writes get the same results.

Each run draws new ones, because the contract's fixed tests already cover what was thought of; a failure prints its
shortest sequence of steps and the line that repeats it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from tests.backends import PERSISTENT_KINDS, Opener

from onceward.core.claim import EVER, Append, Begin, Entry, Mark, Move, Ref, Status, Verb, Write, WriteResult
from onceward.core.outcome import Outcome
from onceward.store import Store
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock
from onceward.testing.clock import SECOND

# Few keys and short spans, so that writes meet and boundaries are hit exactly.
KEYS = ("a", "A ")
SCOPES = ("s", "s:a")
SPANS = (0, 1 * SECOND, 3 * SECOND, 7 * SECOND)
# A few seconds for each store. ONCEWARD_EXAMPLES=2000 runs longer.
EXAMPLES = int(os.environ.get("ONCEWARD_EXAMPLES", "25"))
# Longer than any lease and retention together.
AFTER_EVERYTHING = 100

# The next verbs for a key that is not simply claimed.
LIKELY = {
    Status.IN_PROGRESS: (Verb.SETTLE, Verb.FAIL, Verb.NOT_DONE, Verb.RENEW, Verb.DOUBT, Verb.RELEASE, Verb.ABANDON),
    Status.IN_DOUBT: (Verb.SETTLE, Verb.UPHOLD, Verb.OVERTURN),
}

refs = st.builds(Ref, st.sampled_from(SCOPES), st.sampled_from(KEYS))
spans = st.sampled_from(SPANS)
bodies = st.sampled_from([None, b"", b"x", b"\x00\xff", b"y" * 1000])
outcomes = st.builds(
    Outcome, st.sampled_from([None, 0, 200]), st.sampled_from([None, "", "{}"]), bodies, st.integers(0, 2)
)
notes = st.sampled_from(["", "why", "é'\""])
begins = st.builds(
    Begin,
    scope=st.just(""),
    key=st.just(""),
    write_id=st.just(""),
    fingerprint=st.sampled_from(["f", "f", "f", "f", "f", "g"]),
    holder=st.sampled_from(["h1", "h2"]),
    repeatable=st.booleans(),
    lease=spans,
    retain=spans,
    user_id=st.sampled_from(["", "u"]),
    endpoint=st.sampled_from(["", "e"]),
    dead=st.sampled_from([0, 0, 0, 1]),
    key_basis=st.sampled_from([0, 0, 5 << 20]),
)
moves = st.builds(
    Move,
    scope=st.just(""),
    key=st.just(""),
    write_id=st.just(""),
    verb=st.sampled_from(Verb),
    version=st.just(0),
    lease=spans,
    retain=spans,
    outcome=outcomes,
    note=notes,
    refuse=st.sampled_from([0, 0, 1 * SECOND, 7 * SECOND, EVER]),
)
appends = st.builds(
    Append,
    scope=st.just(""),
    key=st.just(""),
    write_id=st.just(""),
    version=st.just(0),
    seq=st.integers(0, 3),
    chunks=st.lists(st.sampled_from([b"", b"1", b"\x00"]), max_size=3).map(tuple),
)


marks = st.builds(
    Mark,
    scope=st.just(""),
    key=st.just(""),
    write_id=st.just(""),
    version=st.just(0),
    seq=st.integers(0, 3),
    text=st.sampled_from(['""', '{"a":1}', "é'\""]),
)


# Which of a key's versions a write names: the newest, an older one, or one that was never given out.
versions = st.sampled_from([-1, -1, -1, -1, -2, None])


@dataclass(frozen=True, slots=True)
class Step:
    """The next step for one key. `pick` chooses from the sensible next steps; otherwise any step is drawn."""

    ref: Ref
    pick: int
    version: int | None
    begin: Begin
    move: Move
    append: Append
    mark: Mark

    def write(self, entry: Entry | None) -> Write:
        if entry is None or entry.status not in LIKELY:
            if self.pick == 2:
                return replace(self.move, verb=Verb.FORGET)
            return (self.mark if self.pick == 1 else self.begin) if self.pick % 4 else self.move
        verbs = LIKELY[entry.status]
        if self.pick < len(verbs):
            return replace(self.move, verb=verbs[self.pick])
        if self.pick < len(verbs) + 2:
            return replace(self.append, seq=entry.outcome.chunks + 1)
        if self.pick < len(verbs) + 4:
            return replace(self.mark, seq=entry.recovery_seq + self.mark.seq)
        return self.begin if self.pick % 2 else self.append


steps = st.builds(Step, refs, st.integers(0, 13), versions, begins, moves, appends, marks)


class SideBySide(RuleBasedStateMachine):
    """`model` is a memory store; `subject` and `other` are stores under test on the same data, as of two processes. All have
    the same clock.
    """

    def __init__(self, subject: Store, other: Store, clock: PinnedClock, number: int) -> None:
        super().__init__()
        self.clock = clock
        self.subject = subject
        self.other = other
        self.model = MemoryStore(clock)
        # Purge leftovers of earlier runs; the rest has its own scopes.
        clock.advance(AFTER_EVERYTHING)
        drain(subject)
        self.prefix = f"{number}-"
        self.write_ids = itertools.count(1)
        self.sent: list[tuple[Write, Write]] = []
        # The versions of each key in the order they were given out, here and there.
        self.versions: dict[Ref, list[tuple[int, int]]] = {}

    @rule(drawn=st.lists(steps, min_size=1, max_size=4))
    def commit_together(self, drawn: list[Step]) -> None:
        """One batch, with one write for each key, as the batcher sees to it."""
        pairs = {step.ref: self.addressed(step) for step in drawn}
        self.commit_both(list(pairs.values()))

    @rule(drawn=st.lists(st.tuples(steps, st.booleans()), min_size=1, max_size=6))
    def commit_in_turn(self, drawn: list[tuple[Step, bool]]) -> None:
        """Commit batches of one write, so that a key passes through several states, in two processes."""
        for step, elsewhere in drawn:
            if elsewhere:
                self.write_through_the_other_store()
            self.commit_both([self.addressed(step)])

    def write_through_the_other_store(self) -> None:
        """Write through the other store, so that the claim cache of this one is out of date."""
        self.subject, self.other = self.other, self.subject

    @rule(back=st.integers(1, 4))
    def send_again(self, back: int) -> None:
        """Send the same write again, as after a lost result."""
        if len(self.sent) >= back:
            self.commit_both([self.sent[-back]])

    @rule(span=st.sampled_from([0, *SPANS, *(span + 1 for span in SPANS), SECOND - 1]))
    def wait(self, span: int) -> None:
        self.clock.set(self.clock() + span)

    @rule(wanted=st.lists(refs, max_size=5))
    def read(self, wanted: list[Ref]) -> None:
        there = [self.there(ref) for ref in wanted]

        expected, found = self.model.read(there), self.subject.read(there)

        assert found.now == expected.now
        assert list(found.entries) == [self.translated(entry) for entry in expected.entries]

    @rule(scope=st.sampled_from(SCOPES), status=st.none() | st.sampled_from(Status), limit=st.integers(1, 5))
    def scan(self, scope: str, status: Status | None, limit: int) -> None:
        expected, found = (scanned(store, self.prefix + scope, status, limit) for store in (self.model, self.subject))

        assert by_ref(found) == by_ref([self.translated_entry(entry) for entry in expected])

    @rule(ref=refs, pick=versions, after=st.sampled_from([0, 0, 1, 2]), limit=st.integers(1, 3))
    def chunks(self, ref: Ref, pick: int | None, after: int, limit: int) -> None:
        self.chunks_both(self.there(ref), pick, after, limit)

    def chunks_both(self, ref: Ref, pick: int | None, after: int, limit: int) -> None:
        here, there = self.version(ref, pick)
        assert self.subject.chunks(ref, there, after, limit) == self.model.chunks(ref, here, after, limit)

    @rule(limit=st.integers(1, 4))
    def purge(self, limit: int) -> None:
        """The order in which a bounded purge deletes is the store's choice, so both purge to the end."""
        first_here, first_there = self.model.purge(limit), self.subject.purge(limit)

        assert first_there == first_here
        assert drain(self.subject) == drain(self.model)

    @rule()
    def lapsed(self) -> None:
        """Compare the lapsed claims. Earlier runs have left some in their own scopes."""
        expected, found = self.model.lapsed(1000), self.subject.lapsed(100_000)

        mine = [entry for entry in found if entry.scope.startswith(self.prefix)]
        assert by_ref(mine) == by_ref([self.translated_entry(entry) for entry in expected])

    def there(self, ref: Ref) -> Ref:
        return Ref(self.prefix + ref.scope, ref.key)

    def version(self, ref: Ref, pick: int | None) -> tuple[int, int]:
        """Return a version as the model and as the subject assigned it."""
        known = self.versions.get(ref, [])
        if pick is not None and len(known) >= -pick:
            return known[pick]
        return (known[-1][0] + 1000, known[-1][1] + 1000) if known else (1000, 1000)

    def addressed(self, step: Step) -> tuple[Write, Write]:
        """Return the step as a write of its key in its current state, for the model and for the subject."""
        ref = self.there(step.ref)
        entry = self.model.read([ref]).entries[0]
        write = step.write(entry)
        write = replace(write, scope=ref.scope, key=ref.key, write_id=f"{next(self.write_ids):016x}")
        if isinstance(write, Begin):
            here, there = self.version(ref, -1) if write.dead else (0, 0)
            return replace(write, dead=here), replace(write, dead=there)
        here, there = self.version(ref, step.version)
        return replace(write, version=here), replace(write, version=there)

    def commit_both(self, pairs: Sequence[tuple[Write, Write]]) -> None:
        self.sent += pairs
        expected = self.model.commit([here for here, _ in pairs])
        found = self.subject.commit([there for _, there in pairs])
        for (here, _), model, subject in zip(pairs, expected, found, strict=True):
            self.learn(here, model, subject)
            assert subject == replace(model, entry=self.translated(model.entry))
            if model.applied and isinstance(here, Begin | Append):
                self.chunks_both(Ref(here.scope, here.key), -1, 0, 10)

    def learn(self, write: Write, model: WriteResult, subject: WriteResult) -> None:
        if isinstance(write, Begin) and model.applied and model.entry is not None and subject.entry is not None:
            known = self.versions.setdefault(model.entry.ref, [])
            if not known or model.entry.version > known[-1][0]:
                assert not known or subject.entry.version > known[-1][1]
                known.append((model.entry.version, subject.entry.version))

    def translated(self, entry: Entry | None) -> Entry | None:
        return None if entry is None else self.translated_entry(entry)

    def translated_entry(self, entry: Entry) -> Entry:
        return replace(entry, version=dict(self.versions[entry.ref])[entry.version])


def scanned(store: Store, scope: str, status: Status | None, limit: int) -> list[Entry]:
    entries: list[Entry] = []
    after = ""
    while True:
        page = store.scan(scope, status, after, limit)
        assert len(page.entries) <= limit
        entries += page.entries
        after = page.next
        if not after:
            return entries


def by_ref(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.ref)


def drain(store: Store) -> int:
    total = 0
    while taken := store.purge(100):
        total += taken
    return total


@pytest.mark.parametrize("backend", PERSISTENT_KINDS, indirect=True)
def test_every_store_gives_the_same_results_as_the_memory_store(make_store: Opener, clock: PinnedClock) -> None:
    store, other = make_store(clock), make_store(clock)
    numbers = itertools.count(1)

    run_state_machine_as_test(
        lambda: SideBySide(store, other, clock, next(numbers)),  # type: ignore[arg-type]  # any function that makes one will do
        settings=settings(max_examples=EXAMPLES, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]),
    )
