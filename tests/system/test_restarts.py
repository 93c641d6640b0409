"""The server goes away and comes back in the middle of load."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import pytest
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.system.crowd import Crowd, check_outcomes
from tests.system.process import Effects, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

# Each worker asks for all of them, in an order of its own, so that every key is raced for and replayed.
KEYS = [(f"order {number}", "irreversible" if number % 2 else "idempotent") for number in range(300)]
WORKERS = 3


class Server(Protocol):
    def stop(self) -> None: ...
    def start(self) -> None: ...


def put_under_load_and_restart(server: Server, url: str, start_worker: StartWorker) -> Crowd:
    with Crowd() as crowd:
        workers = [start_worker() for _ in range(WORKERS)]
        for number, worker in enumerate(workers):
            crowd.listen(worker)
            keys = random.Random(number).sample(KEYS, len(KEYS))
            worker.order("load", url=url, keys=keys, lease=5.0, tries=5)
        for restart in (1, 2, 3):
            crowd.wait_for_answers(restart * len(KEYS) * WORKERS // 5)
            server.stop()
            server.start()
        crowd.wait()
    return crowd


def check(crowd: Crowd, effects: Effects) -> None:
    check_outcomes(crowd, effects, KEYS)
    assert crowd.errors() <= {"store-unavailable"}
    assert crowd.values().keys() == {key for key, _ in KEYS}
    assert effects.counts() == {key: 1 for key, _ in KEYS}


def test_a_restarted_postgresql_loses_and_repeats_nothing(effects: Effects, start_worker: StartWorker) -> None:
    with PostgresServer() as server:
        crowd = put_under_load_and_restart(server, server.create_database(), start_worker)

    check(crowd, effects)


def test_a_redis_that_was_killed_and_restarted_loses_and_repeats_nothing(
    effects: Effects, start_worker: StartWorker
) -> None:
    with RedisServer(durable=True) as server:
        crowd = put_under_load_and_restart(server, server.fresh_url(), start_worker)

    check(crowd, effects)


@pytest.mark.parametrize("through", ["once", "loop"])
def test_a_server_that_is_away_while_the_effect_runs_is_told_of_it_afterwards(
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
        answers = [worker.answer()]
        worker.order("run", url=url, key="order 1", effect="irreversible", through=through)
        answers.append(worker.answer())

    assert answers == [{"key": "order 1", "value": own}] * 2
    assert effects.counts() == {"order 1": 1}
