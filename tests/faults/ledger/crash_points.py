"""Lives of a process: each uses the store of the last one, and may end at any boundary.

A boundary is right before or after a call of the store or of the effect. From the boundary at which a life ends,
every call raises `Crashed`: nothing of that life reaches the store any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.faults.ledger.observed_store import ObservedStore

from onceward import Ledger, errors
from onceward.store import Store
from onceward.store.dispatch.batcher import Batcher


class Crashed(errors.OncewardError):
    """The process is gone. One of our own errors, because the batcher hands those on as they are."""

    code = "crashed"


class Boundaries:
    """Counts the boundaries that a life passes and ends it at number `last`; without one it lives on."""

    def __init__(self, last: int | None = None) -> None:
        self.passed: list[str] = []
        self.crashed = False
        self._last = last

    def __call__(self, name: str) -> None:
        if self.crashed or len(self.passed) == self._last:
            self.crashed = True
            raise Crashed(name)
        self.passed.append(name)


@contextmanager
def life(store: Store, boundaries: Boundaries, *, others_are_dead: bool, wait_seconds: float = 0.0) -> Iterator[Ledger]:
    """A ledger as a new process would open it. The holders it finds are of earlier lives: proved dead, or merely silent.
    Neither is a reason to wait.
    """
    watched = ObservedStore(store, boundaries)
    ledger = Ledger(watched, dispatcher=Batcher(watched, lambda _: others_are_dead), wait_seconds=wait_seconds)
    yield ledger
    ledger.close()


@dataclass
class History:
    """The history of one key, as seen from outside."""

    events: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return self.events.count("effect")

    @property
    def values(self) -> set[str]:
        return {result for result in self.results if result.startswith("run ")}

    @contextmanager
    def recording(self, boundaries: Boundaries) -> Iterator[None]:
        """Record how a call ended. The result of a crashed life is not seen by any caller."""
        try:
            yield
        except errors.OncewardError as error:
            if not boundaries.crashed:
                self.results.append(error.code)
        except ZeroDivisionError:
            if not boundaries.crashed:
                self.results.append("its own error")


def every_crash(live: Callable[[str, list[Boundaries]], None]) -> None:
    """Run a life that crashes at each boundary, followed by two that do not, with a new key each time."""
    for last in itertools.count():
        lives = [Boundaries(last), Boundaries(), Boundaries()]
        live(f"boundary {last}", lives)
        if not lives[0].crashed:
            return


def every_two_crashes(live: Callable[[str, list[Boundaries]], None]) -> None:
    """Like `every_crash`, but the recovery also ends at each of its own boundaries."""
    for first in itertools.count():
        for second in itertools.count():
            lives = [Boundaries(first), Boundaries(second), Boundaries(), Boundaries()]
            live(f"boundaries {first} and {second}", lives)
            if not lives[1].crashed:
                break
        if not lives[0].crashed:
            return
