"""Life cycle of a store: first use, several openings of the same data, closing, and a fork."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceward.core.claim import Ref, Verb
from onceward.core.outcome import Outcome
from onceward.errors import OncewardError
from onceward.store import Store
from onceward.testing.caller import KEY, LEASE_SECONDS, SCOPE, Caller, OpenStore, begin, entry_of, move
from onceward.testing.clock import PinnedClock

FIRST_USES: dict[str, tuple[Callable[[Store], object], object]] = {
    "commit": (lambda store: [result.applied for result in store.commit([begin()])], [True]),
    "move": (lambda store: [result.applied for result in store.commit([move(Verb.SETTLE, 1)])], [False]),
    "read": (lambda store: store.read([Ref(SCOPE, KEY)]).entries, (None,)),
    "scan": (lambda store: store.scan(None, None, "", 10).entries, ()),
    "purge": (lambda store: store.purge(10), 0),
    "chunks": (lambda store: store.chunks(Ref(SCOPE, KEY), 1, 0, 10), []),
    "abandon": (lambda store: store.abandon(), None),
    "close": (lambda store: store.close(), None),
}


class LifecycleRules:
    @pytest.mark.parametrize("use", FIRST_USES)
    def test_any_method_may_be_the_first_one_used(self, use: str, store: Store) -> None:
        """Rule 9."""
        call, expected = FIRST_USES[use]

        assert call(store) == expected

    def test_closing_twice_or_unused_is_harmless(self, open_store: OpenStore, clock: PinnedClock) -> None:
        """Rule 9."""
        for used in (True, False):
            store = open_store(clock)
            if used:
                store.read([])
            store.close()
            store.close()

    def test_a_closed_store_refuses_every_call(self, open_store: OpenStore, clock: PinnedClock) -> None:
        """Rule 9. The commit either raises an error, or reports correctly whether it stored the claim."""
        store = open_store(clock)
        store.commit([begin("before")])
        store.close()
        write = begin("after")

        try:
            applied = store.commit([write])[0].applied
        except OncewardError:
            applied = False

        there = open_store(clock).read([Ref(SCOPE, "after")]).entries[0]
        assert applied == (there is not None and there.write_id == write.write_id)

    def test_committed_entries_are_there_when_the_store_is_opened_again(
        self, caller: Caller, open_store: OpenStore, clock: PinnedClock
    ) -> None:
        """Rule 1."""
        version = caller.hold().version
        caller.append(version, 1, b"chunk")
        settled = entry_of(
            caller.move(Verb.SETTLE, version, outcome=Outcome(201, "{}", b"body", 1), note="done"), applied=True
        )

        again = Caller(open_store(clock))

        assert again.read() == settled
        assert again.chunks(version) == [b"chunk"]
        assert again.scan() == [settled]

    def test_two_stores_on_the_same_data_see_each_others_writes_at_once(
        self, caller: Caller, open_store: OpenStore, clock: PinnedClock
    ) -> None:
        """Rule 2."""
        other = Caller(open_store(clock))
        other.read()

        first = caller.hold()
        assert entry_of(other.begin(), applied=False) == first
        settled = entry_of(other.move(Verb.SETTLE, first.version), applied=True)
        assert entry_of(caller.begin(), applied=False) == settled

    def test_two_stores_on_the_same_data_take_turns_on_one_key(
        self, caller: Caller, open_store: OpenStore, clock: PinnedClock
    ) -> None:
        """Rule 4."""
        callers = [caller, Caller(open_store(clock)), Caller(open_store(clock))]
        versions = []
        for turn in range(9):
            versions.append(callers[turn % 3].hold().version)
            clock.advance(LEASE_SECONDS)

        assert versions == sorted(set(versions))

    def test_an_abandoned_store_can_be_opened_again(self, store: Store) -> None:
        """Rule 9. A forked child calls `abandon` before it uses the store that it inherited."""
        store.commit([begin("before")])

        store.abandon()

        assert store.commit([begin("after")])[0].applied
        assert store.read([Ref(SCOPE, "after")]).entries[0] is not None
