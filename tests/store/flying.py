"""A memory store whose batches fly, and land when a test lets them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from tests.store.gate import GateStore

from onceward.core.claim import Answer, Write
from onceward.store.batch import Batcher
from onceward.store.flight import Flight, Packs
from onceward.store.pending import Pending


class GateFlight:
    """Lands when its store lets it: one byte on a socket."""

    def __init__(self, store: FlyingStore, writes: Sequence[Write]) -> None:
        self._store = store
        self._writes = writes
        self._here, self.there = socket.socketpair()
        self._here.setblocking(False)
        self.grounded = store.grounds
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

    def land(self) -> None:
        self.there.send(b".")

    def give_up(self) -> None:
        self._store.given_up += 1

    def close(self) -> None:
        self._here.close()
        self.there.close()

    def finish(self) -> list[Answer]:
        self.close()
        self._store.finished.append(threading.current_thread().name)
        answers = self._store.decide(self._writes)
        self.received = True
        return answers


class GatePacked:
    """Its store notes what is packed, as often as it is."""

    def __init__(self, store: FlyingStore) -> None:
        self._store = store
        self._writes: list[Write] = []

    def add(self, writes: Sequence[Write]) -> None:
        self._store.packed += [write.key for write in writes]
        if self._store.raises is not None:
            raise self._store.raises
        self._writes += writes

    def depart(self) -> GateFlight | None:
        return self._store.start(self._writes)


class FlyingStore(GateStore):
    """As the gate store, for loops. A flight lands at once unless `lands` is taken back."""

    def __init__(self) -> None:
        super().__init__()
        self.flights: list[GateFlight] = []
        self.sizes: list[int] = []
        self.packed: list[str] = []
        self.finished: list[str] = []
        self.given_up = 0
        self.lands = True
        self.grounds = False
        self.connected = True
        self.pieces = 1
        self.goes_well = True
        self.raises: Exception | None = None

    def pack(self) -> GatePacked:
        return GatePacked(self)

    def start(self, writes: Sequence[Write]) -> GateFlight | None:
        if not self.connected:
            return None
        flight = GateFlight(self, writes)
        self.flights.append(flight)
        self.sizes.append(len(writes))
        for _ in range(self.pieces if self.lands else 0):
            flight.land()
        return flight

    def close(self) -> None:
        for flight in self.flights:
            flight.close()
        super().close()

    def decide(self, writes: Sequence[Write]) -> list[Answer]:
        self.spoil(writes)
        return super(GateStore, self).commit(writes)


def start(store: Packs, *writes: Write) -> Flight | None:
    packed = store.pack()
    packed.add(writes)
    return packed.depart()


async def write_on(line: Batcher, write: Write) -> Answer:
    """Queued and waited for in one step: in between, a thread that happens to be awake might take it."""
    return await line.write(write)


async def answer_of(pending: Pending[Answer]) -> Answer:
    return await pending


def run(main: Callable[[], Awaitable[object]]) -> None:
    async def awaited() -> None:
        await asyncio.wait_for(main(), 20)

    asyncio.run(awaited())


def answered(asks: Callable[[], Answer]) -> tuple[threading.Thread, list[Answer]]:
    """A thread that asks, and what it is told."""
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(asks()))
    thread.start()
    return thread, answers
