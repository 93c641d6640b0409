"""A memory store whose batches an event loop sends, and which a test completes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from tests.store.blockable_store import BlockableStore

from onceward.core.claim import Write, WriteResult
from onceward.store.dispatch.batcher import Batcher
from onceward.store.dispatch.future import StoreFuture
from onceward.store.dispatch.inflight import BatchEncoder, SentBatch


class BlockableSentBatch:
    """A batch that its store completes with one byte on a socket."""

    def __init__(self, store: PipelinedMemoryStore, writes: Sequence[Write]) -> None:
        self._store = store
        self._writes = writes
        self._here, self.there = socket.socketpair()
        self._here.setblocking(False)
        self.must_block = store.blocks
        self.received = False
        self.polls = 0

    def fileno(self) -> int:
        return self._here.fileno()

    def poll(self) -> bool:
        self.polls += 1
        try:
            over = bool(self._here.recv(1)) and self.polls >= self._store.pieces
        except BlockingIOError:
            return False
        self.received = over and self._store.goes_well
        return over

    def complete(self) -> None:
        self.there.send(b".")

    def give_up(self) -> None:
        self._store.given_up += 1

    def close(self) -> None:
        self._here.close()
        self.there.close()

    def finish(self) -> list[WriteResult]:
        self.close()
        self._store.finished.append(threading.current_thread().name)
        results = self._store.decide(self._writes)
        self.received = True
        return results


class RecordingEncodedBatch:
    """A batch whose store records each encoded write."""

    def __init__(self, store: PipelinedMemoryStore) -> None:
        self._store = store
        self._writes: list[Write] = []

    def add(self, writes: Sequence[Write]) -> None:
        self._store.encoded += [write.key for write in writes]
        if self._store.raises is not None:
            raise self._store.raises
        self._writes += writes

    def send(self) -> BlockableSentBatch | None:
        return self._store.start(self._writes)


class PipelinedMemoryStore(BlockableStore):
    """Like `BlockableStore`, for loops. A batch is completed at once unless `completes` is false."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_batches: list[BlockableSentBatch] = []
        self.sizes: list[int] = []
        self.encoded: list[str] = []
        self.finished: list[str] = []
        self.given_up = 0
        self.completes = True
        self.blocks = False
        self.connected = True
        self.pieces = 1
        self.goes_well = True
        self.raises: Exception | None = None

    def encode_batch(self) -> RecordingEncodedBatch:
        return RecordingEncodedBatch(self)

    def start(self, writes: Sequence[Write]) -> BlockableSentBatch | None:
        if not self.connected:
            return None
        sent_batch = BlockableSentBatch(self, writes)
        self.sent_batches.append(sent_batch)
        self.sizes.append(len(writes))
        for _ in range(self.pieces if self.completes else 0):
            sent_batch.complete()
        return sent_batch

    def close(self) -> None:
        for sent_batch in self.sent_batches:
            sent_batch.close()
        super().close()

    def decide(self, writes: Sequence[Write]) -> list[WriteResult]:
        self.spoil(writes)
        return super(BlockableStore, self).commit(writes)


def start(store: BatchEncoder, *writes: Write) -> SentBatch | None:
    encoded = store.encode_batch()
    encoded.add(writes)
    return encoded.send()


async def write_on(batcher: Batcher, write: Write) -> WriteResult:
    """Queue a write and wait for it in one step; in between, the I/O thread might take it."""
    return await batcher.write(write)


async def result_of(future: StoreFuture[WriteResult]) -> WriteResult:
    return await future


def run(main: Callable[[], Awaitable[object]]) -> None:
    async def awaited() -> None:
        await asyncio.wait_for(main(), 20)

    asyncio.run(awaited())


def run_in_thread(wait: Callable[[], WriteResult]) -> tuple[threading.Thread, list[WriteResult]]:
    """Start a thread that waits for a result. Return it and the list for the result."""
    results: list[WriteResult] = []
    thread = threading.Thread(target=lambda: results.append(wait()))
    thread.start()
    return thread, results
