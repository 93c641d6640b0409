"""A store whose every commit goes the way of event loops: packed and sent, and its answers taken in as they come."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from typing import Any

from onceward.core.claim import Answer, Write
from onceward.store.flight import Packs

# Longer than any server here keeps silent.
SECONDS = 30.0


class FlownStore:
    """Wraps a store that can `pack`, to run its contract in flight; `flown` and `grounded` count the batches."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._packs: Packs = store
        self.flown = 0
        self.grounded = 0

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        packed = self._packs.pack()
        packed.add(writes)
        flight = packed.depart()
        if flight is None:
            self.grounded += bool(writes)
            answers: list[Answer] = self._store.commit(writes)
            return answers
        self.flown += 1
        with selectors.DefaultSelector() as selector:
            selector.register(flight.fileno(), selectors.EVENT_READ)
            while not flight.grounded and selector.select(SECONDS) and not flight.poll():
                pass
        return flight.finish()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
