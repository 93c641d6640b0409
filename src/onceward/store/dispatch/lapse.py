"""Put lapsed claims that are not repeatable in doubt, a page at a time.

Each write is guarded by the version that was read, and the store checks that the lease has lapsed. So a holder that
renews or settles at the same time wins.
"""

from __future__ import annotations

from collections.abc import Callable

from onceward.core.claim import Entry, Move, Verb, doubted
from onceward.store import BatchFailed, Store
from onceward.store.write_id import write_id


class LapsedClaims:
    """Writer that puts lapsed claims in doubt. It repeats a write whose result was lost, under the same write id."""

    def __init__(self) -> None:
        self._undecided: list[Move] = []

    def put_in_doubt(self, store: Store, limit: int, notify: Callable[[Entry], None]) -> int:
        """Put at most `limit` claims in doubt, call `notify` for each, and return their number."""
        moves = self._undecided or [
            Move(entry.scope, entry.key, write_id(), Verb.ABANDON, entry.version) for entry in store.lapsed(limit)
        ]
        if not moves:
            return 0
        self._undecided = moves
        try:
            results = store.commit(moves)
        except BatchFailed:
            self._undecided = []  # nothing was applied, so the next page may differ
            raise
        self._undecided = []
        entries = [a.entry for move, a in zip(moves, results, strict=True) if doubted(move, a) and a.entry is not None]
        for entry in entries:
            notify(entry)
        return len(entries)
