"""SIGSTOP past the lease: the holder does not know that its time was up when it wakes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faults.worker_process import Caller, Effects, WorkerProcess

from onceward import errors

StartWorker = Callable[..., WorkerProcess]


def test_a_thawed_holder_returns_the_outcome_of_the_caller_that_took_over(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("run", url=store_url, key="order 1", effect="idempotent", lease=0.5, pause=True)
    own = worker.reach("effect done")["token"]
    worker.freeze()

    taken_over = caller.run("order 1", "idempotent")
    worker.thaw()
    worker.go_on()
    late = worker.result()

    assert late == {"key": "order 1", "value": taken_over}
    assert caller.run("order 1", "idempotent") == taken_over
    assert [run.token for run in effects.of("order 1")] == [own, taken_over]


def test_the_late_receipt_of_a_thawed_holder_ends_the_doubt(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("run", url=store_url, key="order 1", effect="irreversible", lease=0.5, pause=True)
    own = worker.reach("effect done")["token"]
    worker.freeze()

    for _ in range(2):
        with pytest.raises(errors.InDoubt):
            caller.run("order 1", "irreversible")
    worker.thaw()
    worker.go_on()
    late = worker.result()

    assert late == {"key": "order 1", "value": own}
    assert caller.run("order 1", "irreversible") == own
    assert effects.counts() == {"order 1": 1}


def test_a_holder_that_wakes_before_another_caller_asks_keeps_its_claim(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("run", url=store_url, key="order 1", effect="irreversible", lease=0.001, pause=True)
    own = worker.reach("effect done")["token"]
    worker.freeze()
    worker.thaw()
    worker.go_on()

    assert worker.result() == {"key": "order 1", "value": own}
    assert caller.run("order 1", "irreversible") == own
    assert effects.counts() == {"order 1": 1}


def test_a_blocked_event_loop_keeps_its_claim(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("run", url=store_url, key="order 1", effect="idempotent", lease=0.3, pause=True, through="loop")
    own = worker.reach("effect done")["token"]

    # For three leases, while the worker's loop is blocked.
    with pytest.raises(errors.Busy):
        caller.run("order 1", "idempotent", wait_seconds=0.9)
    worker.go_on()

    assert worker.result() == {"key": "order 1", "value": own}
    assert caller.run("order 1", "idempotent") == own
    assert effects.counts() == {"order 1": 1}
