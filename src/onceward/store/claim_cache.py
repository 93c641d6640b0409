"""Claim cache: the entries of this process's claims as the store last returned them, so that a settle needs no read."""

from __future__ import annotations

from collections.abc import Iterable

from onceward.core.claim import MOVES, Entry, Move, Status, Write, WriteResult

# Far more claims than one process has at a time.
CLAIMS_MAX = 4096


class ClaimCache:
    """Cache of claimed entries. They may be out of date, so a store guards its write and reads if the guard fails."""

    def __init__(self) -> None:
        # The keys are plain tuples: the garbage collector untracks those, but traverses a `Ref` in every collection.
        self._entries: dict[tuple[str, str], Entry] = {}
        self.get = self._entries.get
        self.clear = self._entries.clear

    def update(self, refs: Iterable[tuple[str, str]], results: Iterable[WriteResult | None]) -> None:
        """Cache claimed entries until they are settled."""
        for ref, result in zip(refs, results, strict=True):
            if result is not None:
                self.update_one(ref, result)

    def update_one(self, ref: tuple[str, str], result: WriteResult) -> None:
        entry = result.entry
        if not result.applied or entry is None or entry.status is not Status.IN_PROGRESS:
            self._entries.pop(ref, None)
            return
        if len(self._entries) > CLAIMS_MAX:
            self.clear()
        self._entries[ref] = entry

    def known(self, write: Write) -> Entry | None:
        """Return the cached entry that this write moves, or None.

        A store compares its write id: if it is still the entry's last write, the store need not return the entry.
        """
        if not isinstance(write, Move):
            return None
        entry = self.get((write.scope, write.key))
        if entry is None or entry.version != write.version or entry.status not in MOVES[write.verb][0]:
            return None
        return entry
