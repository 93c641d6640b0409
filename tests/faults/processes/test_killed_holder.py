"""kill -9 between the effect and its record: the effect class decides what the next caller finds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faults.worker_process import Caller, Effects, WorkerProcess

from onceward import errors

StartWorker = Callable[..., WorkerProcess]

# How the death is noticed: by proof, on the same machine, long before the lease of an hour is over; or by the lease,
# when the holder was on a machine that nobody here can look into.
at_once_and_after_the_lease = pytest.mark.parametrize(
    ("machine", "lease"), [("", 3600.0), ("elsewhere", 0.5)], ids=["at once", "after the lease"]
)


@at_once_and_after_the_lease
def test_a_repeatable_effect_runs_again_once_and_has_one_outcome(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker, machine: str, lease: float
) -> None:
    worker = start_worker(machine)
    worker.order("run", url=store_url, key="order 1", effect="idempotent", lease=lease, pause=True)
    first = worker.reach("effect done")["token"]
    worker.kill()

    value = caller.run("order 1", "idempotent")
    again = caller.run("order 1", "idempotent")

    assert value == again
    runs = effects.of("order 1")
    assert [run.token for run in runs] == [first, value]
    assert runs[0].version < runs[1].version


@at_once_and_after_the_lease
def test_an_irreversible_effect_is_in_doubt_for_every_caller_and_never_repeated(
    store_url: str, effects: Effects, start_worker: StartWorker, machine: str, lease: float
) -> None:
    worker = start_worker(machine)
    worker.order("run", url=store_url, key="order 1", effect="irreversible", lease=lease, pause=True, through="once")
    worker.reach("effect done")
    worker.kill()
    other = start_worker()

    results = []
    for _ in range(3):
        other.order("run", url=store_url, key="order 1", effect="irreversible", lease=lease, through="once")
        results.append(other.result())

    assert results == [{"key": "order 1", "error": "in-doubt"}] * 3
    assert effects.counts() == {"order 1": 1}


def test_a_caller_cannot_make_an_irreversible_effect_repeatable_after_the_fact(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("run", url=store_url, key="order 1", effect="irreversible", pause=True)
    worker.reach("effect done")
    worker.kill()

    with pytest.raises(errors.InDoubt):
        caller.run("order 1", "pure")

    assert effects.counts() == {"order 1": 1}


def test_a_result_recorded_before_the_kill_is_replayed(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("run", url=store_url, key="order 1", effect="irreversible")
    value = worker.result()["value"]
    worker.kill()

    assert caller.run("order 1", "irreversible") == value
    assert effects.counts() == {"order 1": 1}
