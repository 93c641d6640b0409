"""Faults to order, for your own tests: lose a request or an answer, crash or freeze at a named point.

    store = FaultyStore(open_store("memory:"))
    ledger = Ledger(store)
    store.lose_answer("settle")          # the next settle is applied, and nobody is told

Points are named `before-settle` and `after-settle`, for each of the words below; after means applied, and not yet
answered. Your own code may have points, too: it says `reached("charged")`. Another process gets its fault through its
environment, `os.environ | fault_at("charged", "crash")`, if its store is a `FaultyStore` or its code says `reached`.
Outside of tests nothing here is ever imported. Signals need a POSIX system.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from onceward.bound import Bindable
from onceward.core.claim import Answer, Begin, Entry, Move, Ref, Status, Verb, Write
from onceward.errors import InvalidOption, StoreUnavailable
from onceward.store import Page, Reading, Store
from onceward.store.bind import Binding
from onceward.store.check import check

# What a store is asked to do. `commit` stands for any write, the words before it for one sort of them.
WORDS = ("begin", *(verb.value for verb in Verb), "append", "commit", "read", "scan", "purge", "lapsed", "chunks")
POINTS = frozenset(f"{when}-{word}" for word in WORDS for when in ("before", "after"))
VARIABLE = "ONCEWARD_FAULT"

T = TypeVar("T")


@dataclass(slots=True)
class _Order:
    point: str
    action: Callable[[], object]
    times: int


class FaultyStore:
    """Any store, with faults. What is not ordered goes through unchanged."""

    def __init__(self, store: Store) -> None:
        self.points: list[str] = []
        """Every point passed so far, in order: where a crash would have been possible."""
        self._store = store
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self._down = 0

    # Orders.

    def lose_request(self, word: str = "commit", times: int = 1) -> None:
        """The next such request never reaches the store; its sender gets `StoreUnavailable`, and may repeat it."""
        self.at(f"before-{word}", _lose, times)

    def lose_answer(self, word: str = "commit", times: int = 1) -> None:
        """The next such request is carried out, and its sender gets `StoreUnavailable` all the same."""
        self.at(f"after-{word}", _lose, times)

    def at(self, point: str, action: Callable[[], object], times: int = 1) -> None:
        """Do this the next time(s) the point is passed: `crash`, `freeze`, or a function of your own."""
        if point not in POINTS:
            raise InvalidOption(f"no point {point!r}: before- or after- one of {', '.join(WORDS)}")
        with self._lock:
            self._orders.append(_Order(point, action, times))

    @contextmanager
    def unavailable(self) -> Iterator[None]:
        """Meanwhile nothing reaches the store."""
        self._down += 1
        try:
            yield
        finally:
            self._down -= 1

    # The store's own methods.

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        words = [*dict.fromkeys(map(_word, writes)), "commit"]
        return self._between(words, lambda: self._store.commit(writes))

    def read(self, refs: Sequence[Ref]) -> Reading:
        return self._between(["read"], lambda: self._store.read(refs))

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        return self._between(["scan"], lambda: self._store.scan(scope, status, after, limit))

    def purge(self, limit: int) -> int:
        return self._between(["purge"], lambda: self._store.purge(limit))

    def lapsed(self, limit: int) -> Sequence[Entry]:
        return self._between(["lapsed"], lambda: self._store.lapsed(limit))

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        return self._between(["chunks"], lambda: self._store.chunks(ref, version, after, limit))

    def check(self) -> None:
        """What an application asks when it starts, which is not one of the points."""
        if self._down:
            _lose()
        check(self._store)

    def bind(self, connection: object) -> Binding:
        """A bound transaction goes past this store: what happens in it is between it and the database."""
        if not isinstance(self._store, Bindable):
            raise InvalidOption("bind() needs a ledger on SQLite or PostgreSQL")
        return self._store.bind(connection)

    def abandon(self) -> None:
        self._lock = threading.Lock()
        self._store.abandon()

    def close(self) -> None:
        self._store.close()

    def _between(self, words: Sequence[str], work: Callable[[], T]) -> T:
        for word in reversed(words):
            self._reach(f"before-{word}")
        if self._down:
            _lose()
        result = work()
        for word in words:
            self._reach(f"after-{word}")
        return result

    def _reach(self, point: str) -> None:
        action: Callable[[], object] | None = None
        with self._lock:
            self.points.append(point)
            for order in self._orders:
                if order.point == point and order.times > 0:
                    order.times -= 1
                    action = order.action
                    break
        reached(point)
        if action is not None:
            action()


# Faults of a whole process.


def crash() -> NoReturn:
    """End this process as a power cut would: no cleanup, no last words."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def freeze() -> None:
    """Stop this process until somebody thaws it."""
    # Sent to this very thread: a signal to the process may reach another one first, and this one would run on a little.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def reached(point: str) -> None:
    """A point of your own, by any name. Nothing happens, unless this process was started with a fault there."""
    order = os.environ.get(VARIABLE, "")
    fault, _, where = order.partition("@")
    name, _, nth = where.rpartition("#")
    if name != point:
        return
    _passed[point] += 1
    if _passed[point] == int(nth):
        crash() if fault == "crash" else freeze()


def fault_at(point: str, fault: Literal["crash", "freeze"], nth: int = 1) -> dict[str, str]:
    """The environment of a process that crashes or freezes when it passes this point for the nth time."""
    if fault not in {"crash", "freeze"} or nth < 1:
        raise InvalidOption(f"a process can crash or freeze, at a first or later time, not {fault!r} at {nth}")
    return {VARIABLE: f"{fault}@{point}#{nth}"}


def wait_until_frozen(process: subprocess.Popen[Any]) -> None:
    """Wait for a child that is to freeze; an error when it ends instead."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        process.returncode = os.waitstatus_to_exitcode(status)
        raise AssertionError(f"the process ended with {process.returncode} instead of freezing")


def thaw(process: subprocess.Popen[Any]) -> None:
    """Let a frozen child go on."""
    process.send_signal(signal.SIGCONT)


_passed: Counter[str] = Counter()


def _lose() -> NoReturn:
    raise StoreUnavailable("a fault that this test has ordered")


def _word(write: Write) -> str:
    return write.verb.value if isinstance(write, Move) else "begin" if isinstance(write, Begin) else "append"
