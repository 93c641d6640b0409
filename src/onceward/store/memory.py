"""The memory store: a dict and the claim state machine. For tests, for one process, and as the reference for others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from onceward.core.claim import Append, Begin, Entry, Ref, Status, Write, WriteResult, apply
from onceward.store import Clock, Page, Reading


def wall_clock() -> int:
    return time.time_ns() // 1000


class MemoryStore:
    """A store in the memory of one process. A forked child starts with an empty store."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or wall_clock
        self._entries: dict[Ref, Entry] = {}
        self._chunks: dict[Ref, list[bytes]] = {}
        self._last_version = 0

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        now = self._clock()
        return [self._commit_one(write, now) for write in writes]

    def _commit_one(self, write: Write, now: int) -> WriteResult:
        ref = Ref(write.scope, write.key)
        before = self._entries.get(ref)
        after = apply(before, write, now, self._last_version + 1)
        if after is None:
            return WriteResult(applied=False, entry=before, now=now)
        if isinstance(write, Begin) and after.status is Status.IN_PROGRESS:
            self._last_version = after.version
            self._chunks.pop(ref, None)
        if isinstance(write, Append):
            self._chunks.setdefault(ref, []).extend(write.chunks)
        self._entries[ref] = after
        return WriteResult(True, after, now, None if before is None else before.found_as(now))

    def read(self, refs: Sequence[Ref]) -> Reading:
        return Reading(self._clock(), tuple(self._entries.get(ref) for ref in refs))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        rows = [
            entry
            for ref, entry in sorted(self._entries.items())
            if scope in (None, entry.scope) and status in (None, entry.status) and cursor(ref) > after
        ]
        page = tuple(rows[:limit])
        return Page(page, cursor(page[-1].ref) if len(rows) > limit else "")

    def purge(self, limit: int) -> int:
        now = self._clock()
        due = [entry for entry in self._entries.values() if entry.purgeable(now) or entry.droppable(now)][:limit]
        for entry in due:
            self._chunks.pop(entry.ref, None)
            if entry.purgeable(now):
                del self._entries[entry.ref]
            else:
                self._entries[entry.ref] = entry.without_result()
        return len(due)

    def lapsed(self, limit: int) -> Sequence[Entry]:
        now = self._clock()
        lapsed = [entry for entry in self._entries.values() if not entry.repeatable and entry.lapsed(now)]
        return sorted(lapsed, key=lambda entry: entry.lease_until)[:limit]

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        entry = self._entries.get(ref)
        if entry is None or entry.version != version:
            return []
        return self._chunks.get(ref, [])[after : after + limit]

    def abandon(self) -> None:
        self._entries = {}
        self._chunks = {}

    def close(self) -> None:
        """Do nothing: this store has no resources to release."""


def cursor(ref: Ref) -> str:
    """Return the cursor after this ref. A scope cannot contain NUL, so cursors sort like refs."""
    return f"{ref.scope}\x00{ref.key}"
