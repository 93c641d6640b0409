"""Round trips of a keyed call: two commits if it is new, one if it is a replay, and nothing else.

The tests of each store in `tests/store` show that a commit is one round trip, and that a refused one writes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.backends import Opener

from onceward import Ledger
from onceward.ledger.terms import EffectClass
from onceward.store import Store


class Counted:
    """A store that writes down which of its methods were called, and whether a commit applied anything."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: list[str] = []

    def commit(self, writes: Any) -> Any:
        results = self._store.commit(writes)
        self.calls.append("applied" if any(result.applied for result in results) else "refused")
        return results

    def __getattr__(self, name: str) -> Any:
        if name in {"read", "scan", "purge", "chunks"}:
            self.calls.append(name)
        return getattr(self._store, name)


@pytest.fixture
def counted(make_store: Opener) -> Counted:
    return Counted(make_store())


@pytest.fixture
def ledger(counted: Counted) -> Iterator[Ledger]:
    with closing(Ledger(counted)) as ledger:
        yield ledger


@pytest.mark.parametrize("effect", ["irreversible", "idempotent"])
@pytest.mark.parametrize("awaited", [True, False])
def test_a_new_call_takes_two_round_trips_and_a_replay_takes_one_that_writes_nothing(
    counted: Counted, ledger: Ledger, effect: EffectClass, awaited: bool
) -> None:
    def call() -> object:
        if awaited:
            return asyncio.run(ledger.run("k", lambda: {"paid": 1}, effect=effect, fingerprint="f"))
        return ledger.blocking.run("k", lambda: {"paid": 1}, effect=effect, fingerprint="f")

    assert call() == {"paid": 1}
    assert counted.calls == ["applied", "applied"]
    assert call() == {"paid": 1}
    assert counted.calls == ["applied", "applied", "refused"]
