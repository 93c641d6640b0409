"""kill -9 of workers under load, at whatever point they are, with others that keep asking."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.system.crowd import Crowd, check_outcomes
from tests.system.process import Effects, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

KEYS = [(f"order {number}", "irreversible" if number % 2 else "idempotent") for number in range(120)]
KILLED = 9


def test_killed_workers_leave_one_outcome_and_no_second_irreversible_effect(
    store_url: str, effects: Effects, start_worker: StartWorker
) -> None:
    chance = random.Random(7)

    with Crowd() as crowd:
        for _ in range(KILLED // 3):
            for _ in range(3):
                worker = start_worker()
                crowd.listen(worker, _killer(chance.randrange(1, 20)))
                worker.order("load", url=store_url, keys=chance.sample(KEYS, len(KEYS)), lease=1.0)
            crowd.wait()
        survivor = start_worker()
        survivor.order("load", url=store_url, keys=KEYS, lease=1.0)
        before = len(crowd.answers)
        crowd.listen(survivor)
        crowd.wait()

    check_outcomes(crowd, effects, KEYS)
    assert crowd.errors() <= {"in-doubt"}
    last = {answer["key"]: answer for answer in crowd.answers[before:]}
    assert last.keys() == {key for key, _ in KEYS}
    assert all("value" in last[key] for key, effect in KEYS if effect == "idempotent")
    in_doubt = [answer for answer in last.values() if "error" in answer]
    assert len(in_doubt) <= KILLED
    answered_earlier = {answer["key"] for answer in crowd.answers[:before] if "value" in answer}
    assert not answered_earlier & {answer["key"] for answer in in_doubt}


def _killer(after: int) -> Callable[[WorkerProcess], bool]:
    """Kills a worker that has given so many answers; it is somewhere in the next ones by then."""
    left = after

    def then(worker: WorkerProcess) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            worker.kill()
        return left > 0

    return then
