"""A process that used its ledger forks, and parent and children continue to use it."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.worker_process import Caller, Effects, WorkerProcess

StartWorker = Callable[..., WorkerProcess]

CHILDREN = 6


def test_parent_and_children_share_the_store_after_a_fork(
    store_url: str, effects: Effects, start_worker: StartWorker
) -> None:
    results, codes = fork(start_worker(), store_url)

    assert codes == [0] * CHILDREN
    assert len({result["value"] for result in results if result["key"] == "shared"}) == 1
    assert len(results) == 2 * CHILDREN + 1
    assert effects.counts() == {"before": 1, "shared": 1} | {f"child {number}": 1 for number in range(CHILDREN)}


def test_a_parent_that_closes_its_ledger_does_not_affect_its_child(
    store_url: str, caller: Caller, effects: Effects, start_worker: StartWorker
) -> None:
    worker = start_worker()
    worker.order("fork_and_close", url=store_url)
    results = {}
    while "done" not in (result := worker.result()):
        results[result["key"]] = result["value"]

    replayed = {key: caller.run(key, "irreversible") for key in results}

    assert replayed == results
    assert effects.counts() == {"before": 1, "child, before": 1, "child, after": 1}


def test_a_forked_child_has_its_own_empty_memory_store(effects: Effects, start_worker: StartWorker) -> None:
    results, codes = fork(start_worker(), "memory:")

    assert codes == [0] * CHILDREN
    assert len(results) == 2 * CHILDREN + 1
    assert effects.counts()["shared"] == CHILDREN + 1


def fork(worker: WorkerProcess, url: str) -> tuple[list[dict[str, str]], list[int]]:
    worker.order("fork", url=url, children=CHILDREN)
    results = []
    while "done" not in (result := worker.result()):
        results.append(result)
    return results, result["codes"]
