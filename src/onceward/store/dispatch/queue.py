"""The queue of writes: which of them may share a batch, be withdrawn, or be refused without reaching the store."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from onceward.core.claim import Append, Begin, Claim, Mark, Move, Ref, Verb, Write, WriteResult, apply, found
from onceward.store import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Store
from onceward.store.dispatch.future import RESULT_SECONDS, StoreFuture
from onceward.store.write_id import write_id

T = TypeVar("T")


class Starter(Protocol):
    """Starts queued writes when a task or thread begins to wait for them."""

    def nudge(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def help(self) -> None: ...


class QueuedWrite(StoreFuture[WriteResult]):
    """A write that waits in the queue for its batch, and the future of its result."""

    __slots__ = ("_starter", "write")

    def __init__(self, write: Write, mutex: threading.Lock, starter: Starter) -> None:
        super().__init__(mutex, RESULT_SECONDS)
        self.write = write
        self._starter = starter

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starter.nudge(loop)

    def on_thread(self) -> None:
        self._starter.help()


Batch: TypeAlias = list[QueuedWrite]  # at most one write of each key


class QueuedCall(StoreFuture[T], Generic[T]):
    """Any other use of the store, such as a scan or a purge, and the future of its result."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[Store], T], mutex: threading.Lock) -> None:
        super().__init__(mutex, RESULT_SECONDS)
        self.work = work


class Queue:
    """Queued writes in order of arrival. The caller of each method holds the batcher's mutex."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedWrite] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop that waits for the first write, or None."""
        return self._waiting[0].loop

    def all(self) -> list[QueuedWrite]:
        return list(self._waiting)

    def append(self, queued: QueuedWrite) -> None:
        self._waiting.append(queued)

    def push(self, queued: QueuedWrite) -> None:
        """Put a release at the front, so that the writes behind it find the key free."""
        self._waiting.appendleft(queued)

    def restore(self, batch: Batch) -> None:
        """Put a batch back at the front, in its order."""
        self._waiting.extendleft(reversed(batch))

    def first(self, most: int = BATCH_WRITES_MAX) -> Batch:
        """Return the next batch and leave it in the queue: at most one write of each key.

        Writes that nothing waits for any more are removed, if they may be withdrawn.
        """
        batch: Batch = []
        taken: set[tuple[str, str]] = set()
        size = 0
        withdrawn = False
        for queued in self._waiting:
            write = queued.write
            if queued.abandoned and _may_withdraw(write):
                withdrawn = True
                continue
            ref = (write.scope, write.key)
            if ref in taken:
                continue
            size += _bytes(write)
            if len(batch) >= min(most, BATCH_WRITES_MAX) or (size > BATCH_BYTES_MAX and batch):
                break
            taken.add(ref)
            batch.append(queued)
        if withdrawn:
            self._waiting = deque(
                queued for queued in self._waiting if not (queued.abandoned and _may_withdraw(queued.write))
            )
        return batch

    def take(self, batch: Batch) -> bool:
        """Remove this batch from the queue; return false if it is no longer the next one."""
        if list(itertools.islice(self._waiting, len(batch))) != batch or any(queued.abandoned for queued in batch):
            return False
        self._waiting = deque(itertools.islice(self._waiting, len(batch), None))
        return True

    def gather(self, most: int = BATCH_WRITES_MAX) -> Batch:
        """Remove and return the next batch. The other writes keep their order."""
        # Change the queue only when the whole batch is known: an interrupt may come after any step.
        if len(self._waiting) == 1 and not self._waiting[0].abandoned:
            batch = [self._waiting[0]]
            self._waiting = deque()
            return batch
        batch = self.first(most)
        if not self.take(batch):
            taken = set(batch)
            self._waiting = deque(queued for queued in self._waiting if queued not in taken)
        return batch

    def refused_by(self, known: dict[Ref, WriteResult]) -> list[tuple[QueuedWrite, WriteResult]]:
        """Remove and return each `begin` that a known entry refuses, with that refusal as its result."""
        refused = []
        waiting: deque[QueuedWrite] = deque()
        for queued in self._waiting:
            result = known.get(Ref(queued.write.scope, queued.write.key))
            if result is not None and _refuses(result, queued.write):
                refused.append((queued, WriteResult(applied=False, entry=result.entry, now=result.now)))
                continue
            if result is not None:
                # This write must reach the store, so later writes of the key must wait for it.
                del known[Ref(queued.write.scope, queued.write.key)]
            waiting.append(queued)
        self._waiting = waiting
        return refused


def release_for(write: Write, result: WriteResult) -> Move | None:
    """Return the write that gives back a claim that nothing waits for, or None if the write got no claim.

    A claim that took over from a silent holder is not released: the key must not read as absent, because that holder
    may have done something. Its lease ends instead, so that the next holder takes over, and knows that it did.
    """
    if not isinstance(write, Begin) or result.entry is None:
        return None
    got = found(write, result)
    if not isinstance(got, Claim):
        return None
    if got.took_over:
        return Move(write.scope, write.key, write_id(), Verb.RENEW, got.version, lease=0, retain=write.retain)
    return Move(write.scope, write.key, write_id(), Verb.RELEASE, got.version)


def give_back(
    store: Store,
    write: Begin,
    result: WriteResult | None,
    *,
    notify_doubt: Callable[[Write, WriteResult], WriteResult] = lambda _, a: a,
) -> None:
    """Undo a `begin` whose caller no longer waits.

    If its result was lost, the write is sent again under its id to get the result, which is passed to `notify_doubt`.
    """
    release = release_for(write, notify_doubt(write, store.commit([write])[0]) if result is None else result)
    if release is not None:
        store.commit([release])


def _refuses(result: WriteResult, write: Write) -> bool:
    entry = result.entry
    return entry is not None and isinstance(write, Begin) and apply(entry, write, result.now, 0) is None


def _may_withdraw(write: Write) -> bool:
    """Return whether the write may be dropped: a begin or a renewal. A renewal with a lease of 0 ends a claim."""
    return isinstance(write, Begin) or (isinstance(write, Move) and write.verb is Verb.RENEW and write.lease > 0)


def _bytes(write: Write) -> int:
    match write:
        case Append():
            return sum(map(len, write.chunks))
        case Move():
            return len(write.outcome.body or b"")
        case Mark():
            return len(write.text)
        case Begin():
            return 0
