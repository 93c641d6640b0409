"""A memory store whose commits a test can observe, block and break, and the writes that such tests send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from onceward.core.claim import Begin, Move, Ref, Verb, Write, WriteResult
from onceward.ledger.blocking import wait
from onceward.store import BatchFailed, Clock, Reading
from onceward.store.dispatch.future import StoreFuture
from onceward.store.memory import MemoryStore

SECOND = 1_000_000
T = TypeVar("T")


class BlockableStore(MemoryStore):
    """A memory store: `hold()` blocks the next commits until `let_go()`; `spoil` may raise for a batch."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.batches: list[list[Write]] = []
        self.reads: list[list[Ref]] = []
        self.threads: list[str] = []
        self.spoil: Callable[[Sequence[Write]], None] = lambda _: None
        self.results: Callable[[list[WriteResult]], list[WriteResult]] = lambda results: results
        self.entered = threading.Semaphore(0)
        self._unblocked = threading.Event()
        self._unblocked.set()

    def hold(self) -> None:
        self._unblocked.clear()

    def let_go(self) -> None:
        self._unblocked.set()

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        self.batches.append(list(writes))
        self.threads.append(threading.current_thread().name)
        self.entered.release()
        assert self._unblocked.wait(10), "the test never let the commit go"
        self.spoil(writes)
        return self.results(super().commit(writes))

    def read(self, refs: Sequence[Ref]) -> Reading:
        self.reads.append(list(refs))
        return super().read(refs)

    def writes_of(self, key: str) -> list[Write]:
        return [write for batch in self.batches for write in batch if write.key == key]


def refuse_key(key: str) -> Callable[[Sequence[Write]], None]:
    def spoil(writes: Sequence[Write]) -> None:
        if any(write.key == key for write in writes):
            raise BatchFailed(f"the data of {key} is bad")

    return spoil


def begin(key: str, write_id: str = "w", **changes: object) -> Begin:
    write = Begin("s", key, write_id, "f", "h", repeatable=True, lease=30 * SECOND, retain=60 * SECOND)
    return replace(write, **changes)  # type: ignore[arg-type]  # a test's own fields


def settle(key: str, version: int, write_id: str = "settle") -> Move:
    return Move("s", key, write_id, Verb.SETTLE, version, retain=60 * SECOND)


def block(future: StoreFuture[T]) -> T:
    async def awaited() -> T:
        return await future

    return wait(awaited())
