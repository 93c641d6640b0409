"""Eight processes race for the same key."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.faults.fork_server import ForkServer
from tests.faults.processes.worker_pool import WorkerPool, check_outcomes
from tests.faults.worker_process import Effects, WorkerProcess


@pytest.fixture(scope="module")
def effects(tmp_path_factory: pytest.TempPathFactory) -> Effects:
    return Effects(tmp_path_factory.mktemp("races") / "effects")


@pytest.fixture(scope="module")
def eight(fork_server: ForkServer, effects: Effects) -> Iterator[list[WorkerProcess]]:
    workers = [WorkerProcess(fork_server, effects) for _ in range(8)]
    for worker in workers:
        worker.reach("ready")
    yield workers
    for worker in workers:
        worker.close()


def test_eight_processes_share_one_effect_and_its_result(
    store_url: str, eight: list[WorkerProcess], effects: Effects
) -> None:
    keys = [(f"{store_url} {number}", "irreversible") for number in range(25)]

    with WorkerPool() as pool:
        for worker in eight:
            pool.collect(worker)
        for worker in eight:
            worker.order("load", url=store_url, keys=keys)
        pool.wait()

    check_outcomes(pool, effects, keys)
    assert pool.errors() == set()
    assert len(pool.results) == 8 * len(keys)
    counts = effects.counts()
    assert [counts[key] for key, _ in keys] == [1] * len(keys)


def test_eight_processes_may_open_an_empty_store_concurrently(
    new_url: Callable[[], str], eight: list[WorkerProcess], effects: Effects
) -> None:
    for _ in range(5):
        url = new_url()
        keys = [(f"opening {url}", "irreversible")]

        with WorkerPool() as pool:
            for worker in eight:
                pool.collect(worker)
            for worker in eight:
                worker.order("load", url=url, keys=keys)
            pool.wait()

        check_outcomes(pool, effects, keys)
        assert pool.errors() == set()
        assert len(pool.results) == 8
