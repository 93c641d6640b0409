"""Writes the stream of one run: a chunk is stored before anybody sees it."""

from __future__ import annotations

from collections.abc import Callable

from onceward.db.engine import Database, Transaction
from onceward.turns.stream import append_chunks
from onceward.turns.threads import in_thread
from onceward.turns.turn import Turn


class Recorder:
    """`told` is called, on the event loop, after each chunk that was stored."""

    def __init__(self, database: Database, turn: Turn, told: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._turn = turn
        self._told = told

    async def record(self, event: str, data: str, also: Callable[[Transaction], None] | None = None) -> bool:
        """Store one chunk (`data` is JSON text), and what else belongs to it. False when the run is superseded: then
        only that other thing is stored.
        """
        stored = await in_thread(self._record, event, data, also)
        if stored:
            self._told()
        return stored

    def _record(self, event: str, data: str, also: Callable[[Transaction], None] | None) -> bool:
        with self._database.write() as tx:
            stored = append_chunks(tx, self._turn.id, self._turn.epoch, [(event, data)])
            if also is not None:
                also(tx)
            return stored > 0
