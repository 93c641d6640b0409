"""Recorder of the stream of one run. A chunk is stored before clients get it."""

from __future__ import annotations

from collections.abc import Callable

from onceward.hub.db.engine import Database, Transaction
from onceward.hub.turns.model.stream import append_chunks
from onceward.hub.turns.model.turn import Turn, order_of


class Recorder:
    """Appends chunks to the stream of one run. `notify` is called on the event loop after each stored chunk."""

    def __init__(self, database: Database, turn: Turn, notify: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._turn = turn
        self._notify = notify

    async def record(self, event: str, data: str, also: Callable[[Transaction], None] | None = None) -> bool:
        """Store one chunk and, in the same transaction, the changes that `also` makes. `data` is JSON text.

        Returns False if the run was superseded. Then the chunk is not stored, but the changes of `also` are.
        """
        stored = await self._database.writer.run(lambda tx: self._record(tx, event, data, also), order_of(self._turn))
        if stored:
            self._notify()
        return stored

    def _record(self, tx: Transaction, event: str, data: str, also: Callable[[Transaction], None] | None) -> bool:
        stored = append_chunks(tx, self._turn.id, self._turn.epoch, [(event, data)])
        if also is not None:
            also(tx)
        return stored > 0
