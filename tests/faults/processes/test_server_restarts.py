"""The server goes away and comes back in the middle of load."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import pytest
from tests.faults.processes.worker_pool import WorkerPool, check_outcomes
from tests.faults.worker_process import Effects, WorkerProcess
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

StartWorker = Callable[..., WorkerProcess]

# Each worker asks for all of them, in an order of its own, so that every key is raced for and replayed.
KEYS = [(f"order {number}", "irreversible" if number % 2 else "idempotent") for number in range(300)]
WORKERS = 3


class Server(Protocol):
    def stop(self) -> None: ...
    def start(self) -> None: ...


def put_under_load_and_restart(server: Server, url: str, start_worker: StartWorker) -> WorkerPool:
    with WorkerPool() as pool:
        workers = [start_worker() for _ in range(WORKERS)]
        for number, worker in enumerate(workers):
            pool.collect(worker)
            keys = random.Random(number).sample(KEYS, len(KEYS))
            worker.order("load", url=url, keys=keys, lease=5.0, tries=5)
        for restart in (1, 2, 3):
            pool.wait_for_results(restart * len(KEYS) * WORKERS // 5)
            server.stop()
            server.start()
        pool.wait()
    return pool


def check(pool: WorkerPool, effects: Effects) -> None:
    check_outcomes(pool, effects, KEYS)
    assert pool.errors() <= {"store-unavailable"}
    assert pool.values().keys() == {key for key, _ in KEYS}
    assert effects.counts() == {key: 1 for key, _ in KEYS}


def test_a_restarted_postgresql_loses_nothing_and_repeats_nothing(effects: Effects, start_worker: StartWorker) -> None:
    with PostgresServer() as server:
        pool = put_under_load_and_restart(server, server.create_database(), start_worker)

    check(pool, effects)


def test_a_killed_and_restarted_redis_loses_nothing_and_repeats_nothing(
    effects: Effects, start_worker: StartWorker
) -> None:
    with RedisServer(durable=True) as server:
        pool = put_under_load_and_restart(server, server.fresh_url(), start_worker)

    check(pool, effects)


@pytest.mark.parametrize("through", ["once", "loop"])
def test_a_server_that_is_down_during_the_effect_gets_its_outcome_afterwards(
    effects: Effects, start_worker: StartWorker, through: str
) -> None:
    worker = start_worker()
    with RedisServer(durable=True) as server:
        url = server.fresh_url()
        worker.order("run", url=url, key="order 1", effect="irreversible", pause=True, through=through)
        own = worker.reach("effect done")["token"]
        server.stop()
        worker.go_on()
        server.start()
        results = [worker.result()]
        worker.order("run", url=url, key="order 1", effect="irreversible", through=through)
        results.append(worker.result())

    assert results == [{"key": "order 1", "value": own}] * 2
    assert effects.counts() == {"order 1": 1}
