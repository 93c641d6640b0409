"""Writes on their way: which of them may share a batch, which may be withdrawn, and which answer themselves."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from onceward.core.claim import Answer, Append, Begin, Claim, Move, Ref, Verb, Write, apply, found
from onceward.store import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Store
from onceward.store.pending import ANSWER_SECONDS, Pending
from onceward.store.write_id import write_id

T = TypeVar("T")


class Starter(Protocol):
    """Gets queued writes going for whoever begins to wait."""

    def nudge(self, loop: asyncio.AbstractEventLoop) -> None: ...
    def help(self) -> None: ...


class Sent(Pending[Answer]):
    """A write on its way."""

    __slots__ = ("_starter", "write")

    def __init__(self, write: Write, mutex: threading.Lock, starter: Starter) -> None:
        super().__init__(mutex, ANSWER_SECONDS)
        self.write = write
        self._starter = starter

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starter.nudge(loop)

    def on_thread(self) -> None:
        self._starter.help()


class Call(Pending[T], Generic[T]):
    """Anything else to do with the store: a scan, a purge."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[Store], T], mutex: threading.Lock) -> None:
        super().__init__(mutex, ANSWER_SECONDS)
        self.work = work


class Queue:
    """Writes in order of arrival. The caller holds the batcher's mutex around every method."""

    def __init__(self) -> None:
        self._waiting: deque[Sent] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop on which the first in line is waited for, if it is one."""
        return self._waiting[0].loop

    def all(self) -> list[Sent]:
        return list(self._waiting)

    def append(self, sent: Sent) -> None:
        self._waiting.append(sent)

    def push(self, sent: Sent) -> None:
        """Ahead of everyone: a release, so that those behind it find the key free."""
        self._waiting.appendleft(sent)

    def restore(self, batch: list[Sent]) -> None:
        """Put back what was gathered, in its order."""
        self._waiting.extendleft(reversed(batch))

    def first(self, most: int = BATCH_WRITES_MAX) -> list[Sent]:
        """The next batch, left where it is: at most one write of each key. What nobody waits for any more is let go."""
        batch: list[Sent] = []
        taken: set[tuple[str, str]] = set()
        size = 0
        withdrawn = False
        for sent in self._waiting:
            write = sent.write
            if sent.abandoned and _may_withdraw(write):
                withdrawn = True
                continue
            ref = (write.scope, write.key)
            if ref in taken:
                continue
            size += _bytes(write)
            if len(batch) >= min(most, BATCH_WRITES_MAX) or (size > BATCH_BYTES_MAX and batch):
                break
            taken.add(ref)
            batch.append(sent)
        if withdrawn:
            self._waiting = deque(sent for sent in self._waiting if not (sent.abandoned and _may_withdraw(sent.write)))
        return batch

    def take(self, batch: list[Sent]) -> bool:
        """Take this batch out, unless another is the next by now."""
        if list(itertools.islice(self._waiting, len(batch))) != batch or any(sent.abandoned for sent in batch):
            return False
        self._waiting = deque(itertools.islice(self._waiting, len(batch), None))
        return True

    def gather(self, most: int = BATCH_WRITES_MAX) -> list[Sent]:
        """The next batch, taken out; the others keep their order."""
        # Nothing is taken out before all of it is in the batch: an interrupt may come behind any step.
        if len(self._waiting) == 1 and not self._waiting[0].abandoned:
            batch = [self._waiting[0]]
            self._waiting = deque()
            return batch
        batch = self.first(most)
        if not self.take(batch):
            taken = set(batch)
            self._waiting = deque(sent for sent in self._waiting if sent not in taken)
        return batch

    def refused_by(self, known: dict[Ref, Answer]) -> list[tuple[Sent, Answer]]:
        """Take out each `begin` that the entry just seen refuses: that is its answer."""
        refused = []
        waiting: deque[Sent] = deque()
        for sent in self._waiting:
            answer = known.get(Ref(sent.write.scope, sent.write.key))
            if answer is not None and _refuses(answer, sent.write):
                refused.append((sent, Answer(applied=False, entry=answer.entry, now=answer.now)))
                continue
            if answer is not None:
                # A write that must reach the store keeps those behind it in line.
                del known[Ref(sent.write.scope, sent.write.key)]
            waiting.append(sent)
        self._waiting = waiting
        return refused


def release_for(write: Write, answer: Answer) -> Move | None:
    """The write that gives back a claim nobody waits for.

    One that took over from a silent holder is not released, because the key must not look fresh: that holder may have
    done something. Its lease ends instead, so that whoever comes next takes over, and knows.
    """
    if not isinstance(write, Begin) or answer.entry is None:
        return None
    got = found(write, answer)
    if not isinstance(got, Claim):
        return None
    if got.took_over:
        return Move(write.scope, write.key, write_id(), Verb.RENEW, got.version, lease=0, retain=write.retain)
    return Move(write.scope, write.key, write_id(), Verb.RELEASE, got.version)


def give_back(
    store: Store, write: Begin, answer: Answer | None, *, notice: Callable[[Write, Answer], Answer] = lambda _, a: a
) -> None:
    """Undo a `begin` whose caller is gone. Where its answer was lost, it is sent again under its id, which tells; and
    `notice` sees that answer.
    """
    release = release_for(write, notice(write, store.commit([write])[0]) if answer is None else answer)
    if release is not None:
        store.commit([release])


def _refuses(answer: Answer, write: Write) -> bool:
    entry = answer.entry
    return entry is not None and isinstance(write, Begin) and apply(entry, write, answer.now, 0) is None


def _may_withdraw(write: Write) -> bool:
    """A claim not wanted any more, and its renewal. A renewal by nothing is none: it lets go of the claim."""
    return isinstance(write, Begin) or (isinstance(write, Move) and write.verb is Verb.RENEW and write.lease > 0)


def _bytes(write: Write) -> int:
    match write:
        case Append():
            return sum(map(len, write.chunks))
        case Move():
            return len(write.outcome.body or b"")
        case Begin():
            return 0
