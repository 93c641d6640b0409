"""Batches: independent writes that share one round trip."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

import threading
from collections.abc import Sequence

from onceward.core.claim import Ref, Verb, Write, WriteResult
from onceward.core.outcome import INLINE_BYTES_MAX, Outcome
from onceward.store import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Store
from onceward.testing.caller import LEASE_SECONDS, SCOPE, Caller, OpenStore, append, begin, entry_of, move, versions_of
from onceward.testing.clock import PinnedClock


class BatchRules:
    def test_an_empty_batch_has_no_results(self, store: Store) -> None:
        """Rule 1."""
        assert store.commit([]) == []

    def test_each_write_of_a_batch_is_decided_on_its_own_and_results_keep_their_order(
        self, caller: Caller, clock: PinnedClock
    ) -> None:
        """Rule 1."""
        names = ("lapsed", "busy", "fails", "settles", "lost", "grows", "gap", "renews")
        versions = dict(zip(names, versions_of(caller.commit(*(begin(name) for name in names))), strict=True))
        caller.move(Verb.DOUBT, caller.hold("doubtful").version, "doubtful")
        doubtful = entry_of(caller.begin("doubtful"), applied=False).version
        clock.advance(LEASE_SECONDS - 1)
        caller.move(Verb.RENEW, versions["busy"], "busy")
        clock.advance(1)

        results = caller.commit(
            begin("fresh"),
            begin("lapsed"),
            begin("busy"),
            move(Verb.FAIL, versions["fails"], "fails"),
            begin("busy", scope="elsewhere"),
            move(Verb.SETTLE, versions["settles"], "settles", outcome=Outcome(200, "{}", b"yes")),
            move(Verb.SETTLE, versions["lost"] + 1, "lost"),
            move(Verb.SETTLE, 1, "never-was"),
            append(versions["grows"], 1, b"a", b"b", key="grows"),
            append(versions["gap"], 3, b"c", key="gap"),
            begin("doubtful"),
            move(Verb.RENEW, versions["renews"], "renews"),
            begin("mismatch", fingerprint="0" * 64),
        )

        assert [result.applied for result in results] == [
            True, True, False, True, True, True, False, False, True, False, False, True, True,
        ]  # fmt: skip
        assert [result.entry and result.entry.key for result in results] == [
            "fresh", "lapsed", "busy", "fails", "busy", "settles", "lost", None, "grows", "gap", "doubtful", "renews",
            "mismatch",
        ]  # fmt: skip
        assert entry_of(results[5], applied=True).outcome.body == b"yes"
        assert entry_of(results[10], applied=False).version == doubtful
        assert caller.chunks(versions["grows"], key="grows") == [b"a", b"b"]

    def test_a_full_batch_of_claims_gets_one_version_per_claim(self, caller: Caller) -> None:
        """Rule 7."""
        results = caller.commit(*(begin(f"key-{number}") for number in range(BATCH_WRITES_MAX)))

        assert all(result.applied for result in results)
        assert [result.entry and result.entry.key for result in results] == [
            f"key-{number}" for number in range(BATCH_WRITES_MAX)
        ]
        again = caller.commit(*(begin(f"key-{number}") for number in reversed(range(BATCH_WRITES_MAX))))
        assert not any(result.applied for result in again)
        assert versions_of(again) == list(reversed(versions_of(results)))

    def test_a_batch_of_the_maximum_size_in_bytes_is_stored_completely(self, caller: Caller) -> None:
        """Rule 7."""
        count = BATCH_BYTES_MAX // INLINE_BYTES_MAX
        versions = versions_of(caller.commit(*(begin(f"key-{number}") for number in range(count))))
        body = bytes(range(256)) * (INLINE_BYTES_MAX // 256)

        results = caller.commit(
            *(
                move(Verb.SETTLE, version, f"key-{number}", outcome=Outcome(body=body))
                for number, version in enumerate(versions)
            )
        )

        assert all(result.applied for result in results)

    def test_one_key_in_two_scopes_is_two_entries(self, caller: Caller) -> None:
        """Rule 1."""
        one, other = caller.commit(begin(scope="one"), begin(scope="other"))

        settle = move(Verb.SETTLE, entry_of(one, applied=True).version, scope="one")
        assert caller.one(settle).applied
        assert caller.read(scope="other") == entry_of(other, applied=True)

    def test_a_batch_full_of_refusals_writes_nothing(self, caller: Caller) -> None:
        """Rule 3."""
        writes = [begin(f"key-{number}") for number in range(50)]
        caller.commit(*writes)
        before = caller.scan()

        results = caller.commit(*(begin(f"key-{number}") for number in range(50)))

        assert not any(result.applied for result in results)
        assert caller.scan() == before

    def test_of_concurrent_callers_exactly_one_gets_each_key(self, open_store: OpenStore, clock: PinnedClock) -> None:
        """Rule 1. The batches name the same keys in different orders, so a store that locks in batch order would deadlock."""
        keys = [f"key-{number}" for number in range(40)]
        batches = [
            [begin(key) for key in order] for order in (keys, keys[::-1], keys[20:] + keys[:20], keys[::2] + keys[1::2])
        ]

        commits = at_once([open_store(clock) for _ in batches], [[batch] for batch in batches])

        claimed_by: dict[str, list[str]] = {key: [] for key in keys}
        for batch, results in zip(batches, commits, strict=True):
            for write, result in zip(batch, results[0], strict=True):
                if result.applied:
                    claimed_by[write.key].append(write.write_id)
        assert {key: len(write_ids) for key, write_ids in claimed_by.items()} == dict.fromkeys(keys, 1)
        there = open_store(clock).read([Ref(SCOPE, key) for key in keys]).entries
        assert [entry and entry.write_id for entry in there] == [claimed_by[key][0] for key in keys]

    def test_of_concurrent_settles_the_accepted_one_stands(self, open_store: OpenStore, clock: PinnedClock) -> None:
        """Rule 2. Several callers settle the same claim, as can happen when a holder repeats its write."""
        keys = [f"key-{number}" for number in range(20)]
        held = list(zip(keys, versions_of(open_store(clock).commit([begin(key) for key in keys])), strict=True))
        batches = [
            [move(Verb.SETTLE, version, key, outcome=Outcome(body=bytes([side]))) for key, version in order]
            for side, order in enumerate((held, held[::-1], held[10:] + held[:10]))
        ]

        commits = at_once([open_store(clock) for _ in batches], [[batch] for batch in batches])

        accepted = [
            (write.key, write.outcome.body)
            for batch, results in zip(batches, commits, strict=True)
            for write, result in zip(batch, results[0], strict=True)
            if result.applied
        ]
        there = open_store(clock).read([Ref(SCOPE, key) for key in keys]).entries
        assert sorted(accepted) == sorted((entry.key, entry.outcome.body) for entry in there if entry is not None)


def at_once(stores: Sequence[Store], work: Sequence[Sequence[Sequence[Write]]]) -> list[list[list[WriteResult]]]:
    """Commit the batches of each store in a separate thread. Threads that share a store object take turns."""
    locks = {id(store): threading.Lock() for store in stores}
    start = threading.Barrier(len(stores))
    commits: list[list[list[WriteResult]]] = [[] for _ in stores]
    errors: list[BaseException] = []

    def run(number: int) -> None:
        store = stores[number]
        try:
            store.read([])
            start.wait()
            for batch in work[number]:
                with locks[id(store)]:
                    commits[number].append(store.commit(batch))
        except BaseException as error:  # noqa: BLE001  # raised again in the thread of the test
            errors.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return commits
