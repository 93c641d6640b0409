"""Claims of this process that are under way, as the store last answered them: what is settled next is known already."""

from __future__ import annotations

from collections.abc import Iterable

from onceward.core.claim import MOVES, Answer, Entry, Move, Status, Write

# Far more than one process has at a time.
HELD_MAX = 4096


class Held:
    """Remembered, and so perhaps out of date: a store guards its write, and asks when the guard says no."""

    def __init__(self) -> None:
        # By plain pairs: the collector forgets those, and walks through a `Ref` again and again.
        self._entries: dict[tuple[str, str], Entry] = {}
        self.get = self._entries.get
        self.clear = self._entries.clear

    def note(self, refs: Iterable[tuple[str, str]], answers: Iterable[Answer | None]) -> None:
        """Keep in mind what was claimed until it is settled."""
        for ref, answer in zip(refs, answers, strict=True):
            if answer is not None:
                self.note_one(ref, answer)

    def note_one(self, ref: tuple[str, str], answer: Answer) -> None:
        entry = answer.entry
        if not answer.applied or entry is None or entry.status is not Status.IN_PROGRESS:
            self._entries.pop(ref, None)
            return
        if len(self._entries) > HELD_MAX:
            self.clear()
        self._entries[ref] = entry

    def known(self, write: Write) -> Entry | None:
        """The entry that this write moves, as it is remembered. With its last write to compare, a store can see that nobody
        else has written, and leave the rest of the entry out of its answer.
        """
        if not isinstance(write, Move):
            return None
        entry = self.get((write.scope, write.key))
        if entry is None or entry.version != write.version or entry.status not in MOVES[write.verb][0]:
            return None
        return entry
