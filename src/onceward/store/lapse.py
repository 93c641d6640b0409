"""Lapsed claims that may not be repeated, put in doubt a page at a time.

Each write is guarded by the version that was seen and, inside the store, by the lease having lapsed: a holder that renews
or settles at that moment wins.
"""

from __future__ import annotations

from collections.abc import Callable

from onceward.core.claim import Entry, Move, Verb, doubted
from onceward.store import BatchFailed, Store
from onceward.store.write_id import write_id


class Lapse:
    """Remembers the writes whose answer was lost: sent again under their ids, they tell what became of them."""

    def __init__(self) -> None:
        self._unanswered: list[Move] = []

    def put_in_doubt(self, store: Store, limit: int, told: Callable[[Entry], None]) -> int:
        """Put at most `limit` claims in doubt, and tell of each; gives how many."""
        moves = self._unanswered or [
            Move(entry.scope, entry.key, write_id(), Verb.ABANDON, entry.version) for entry in store.lapsed(limit)
        ]
        if not moves:
            return 0
        self._unanswered = moves
        try:
            answers = store.commit(moves)
        except BatchFailed:
            self._unanswered = []  # nothing of it was applied, and the next page may be another
            raise
        self._unanswered = []
        entries = [a.entry for move, a in zip(moves, answers, strict=True) if doubted(move, a) and a.entry is not None]
        for entry in entries:
            told(entry)
        return len(entries)
