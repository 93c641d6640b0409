"""kill -9 of workers under load, at whatever point they are, with others that keep asking."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.faults.processes.worker_pool import WorkerPool, check_outcomes
from tests.faults.worker_process import Effects, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

KEYS = [(f"order {number}", "irreversible" if number % 2 else "idempotent") for number in range(120)]
KILLED = 9


def test_killed_workers_leave_one_outcome_and_no_second_irreversible_effect(
    store_url: str, effects: Effects, start_worker: StartWorker
) -> None:
    chance = random.Random(7)

    with WorkerPool() as pool:
        for _ in range(KILLED // 3):
            for _ in range(3):
                worker = start_worker()
                pool.collect(worker, _killer(chance.randrange(1, 20)))
                worker.order("load", url=store_url, keys=chance.sample(KEYS, len(KEYS)), lease=1.0)
            pool.wait()
        survivor = start_worker()
        survivor.order("load", url=store_url, keys=KEYS, lease=1.0)
        before = len(pool.results)
        pool.collect(survivor)
        pool.wait()

    check_outcomes(pool, effects, KEYS)
    assert pool.errors() <= {"in-doubt"}
    last = {result["key"]: result for result in pool.results[before:]}
    assert last.keys() == {key for key, _ in KEYS}
    assert all("value" in last[key] for key, effect in KEYS if effect == "idempotent")
    in_doubt = [result for result in last.values() if "error" in result]
    assert len(in_doubt) <= KILLED
    answered_earlier = {result["key"] for result in pool.results[:before] if "value" in result}
    assert not answered_earlier & {result["key"] for result in in_doubt}


def _killer(after: int) -> Callable[[WorkerProcess], bool]:
    """Return a hook that kills a worker after this many results, while it works on the next ones."""
    left = after

    def then(worker: WorkerProcess) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            worker.kill()
        return left > 0

    return then
