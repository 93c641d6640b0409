"""Keys in doubt for the tests of the hooks, on a ledger whose clock is pinned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from onceward import Ledger, errors
from onceward.core.claim import Entry, Status
from onceward.core.verdict import Verdict
from onceward.ledger.doubts import at_store_time
from onceward.ledger.recovery import encode_recovery
from onceward.reconcile.evidence import Hook
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock


class Doubt:
    """One key in doubt."""

    def __init__(self, key: str) -> None:
        self.clock = PinnedClock()
        self.ledger = Ledger(MemoryStore(self.clock), wait_seconds=0)
        self.key = key
        self.runs = 0
        try:
            self.run()
        except TimeoutError:
            assert self.entry.status is Status.IN_DOUBT

    @property
    def entry(self) -> Entry:
        found = self.ledger.blocking.read("call", self.key)
        assert found is not None
        return found

    def _effect(self) -> str:
        self.runs += 1
        if self.runs == 1:
            raise TimeoutError("the answer never came")
        return f"run {self.runs}"

    def run(self, reconcile: Hook | None = None) -> object:
        """Call again, as a user does; return what the call returned, or the code of its error."""
        try:
            return self.ledger.blocking.run(self.key, self._effect, effect="irreversible", reconcile=reconcile)
        except errors.OncewardError as error:
            return error.code

    def ask(self, reconcile: Hook, recovery_point: object = None) -> Verdict:
        """Ask the hook as `run` does, for an entry with a recovery point."""

        async def asked() -> Verdict:
            recovery = None if recovery_point is None else encode_recovery(recovery_point)
            return await reconcile(replace(self.entry, recovery=recovery))

        with at_store_time(self.clock()):
            return asyncio.run(asked())


@contextmanager
def in_doubt(key: str = "order 4/2") -> Iterator[Doubt]:
    doubt = Doubt(key)
    yield doubt
    doubt.ledger.close()
