"""Several workers under load, and their reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from tests.faults.worker_process import Effects, WorkerProcess


class WorkerPool:
    """Reads what its workers report, each on a thread of its own: a worker whose pipe is full would stand still."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._threads = ThreadPoolExecutor(max_workers=16)
        self._readers: list[Future[None]] = []

    def collect(self, worker: WorkerProcess, then: Callable[[WorkerProcess], bool] = lambda _: True) -> None:
        """Collect the reports of a worker until it is done or gone. `then` is called with each, and may end it."""
        self._readers.append(self._threads.submit(self._collect, worker, then))

    def _collect(self, worker: WorkerProcess, then: Callable[[WorkerProcess], bool]) -> None:
        while True:
            result = worker.result()
            if not result or "done" in result:
                return
            with self._changed:
                self.results.append(result)
                self._changed.notify_all()
            if not then(worker):
                return

    def wait_for_results(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.results) >= count, timeout=60.0), "the load stands still"

    def wait(self) -> None:
        """Wait until every worker is done or gone."""
        for reader in self._readers:
            reader.result()

    def values(self) -> dict[str, set[str]]:
        """Return the results by key."""
        found: dict[str, set[str]] = {}
        for result in self.results:
            if "value" in result:
                found.setdefault(result["key"], set()).add(result["value"])
        return found

    def errors(self) -> set[str]:
        return {result["error"] for result in self.results if "error" in result}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=error is None)


def check_outcomes(pool: WorkerPool, effects: Effects, keys: Sequence[tuple[str, str]]) -> None:
    """Check that each key has one outcome, of one counted run, and that irreversible effects ran at most once."""
    values, counts = pool.values(), effects.counts()
    tokens = {(effect.key, effect.token) for effect in effects.all()}
    for key, effect in keys:
        assert len(values.get(key, ())) <= 1, f"{key} has several outcomes: {values[key]}"
        assert all((key, value) in tokens for value in values.get(key, ())), f"{key} has an outcome that nobody made"
        assert effect != "irreversible" or counts[key] <= 1, f"{key} ran {counts[key]} times"
