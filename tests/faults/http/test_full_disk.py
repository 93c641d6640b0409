"""No space left for the SQLite file of a worker: stored responses still replay, other requests are told to retry."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.backends import BACKENDS
from tests.faults.http.conftest import StartWorker
from tests.faults.http.http_worker_process import Worker
from tests.faults.worker_process import Effects

from onceward.testing import fault_at

# Enough for the few lines of the effects, and less than any database.
FULL_BYTES = 4096


@pytest.mark.parametrize("backend", [BACKENDS["sqlite"]], ids=["sqlite"])
def test_on_a_full_disk_a_response_is_held_back_until_there_is_room(
    start_worker: StartWorker, effects: Effects
) -> None:
    worker = start_worker(fault_at("after-effect", "freeze", nth=2), store_seconds=0.3, lease_seconds=30.0)
    kept = worker.send_request("/hold", "kept")
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(worker.send_request, "/hold", "no-room")
        worker.wait_until_frozen()
        limit_files(worker, FULL_BYTES)
        worker.thaw()
        no_room = future.result()
    not_begun, replayed = worker.send_request("/hold", "not-begun"), worker.send_request("/hold", "kept")
    limit_files(worker, None)

    late = worker.send_request("/hold", "no-room", wait=30)
    begun = worker.send_request("/hold", "not-begun")

    assert [(one.status, one.retry_after) for one in (no_room, not_begun)] == [(503, "5")] * 2
    assert (replayed.same, replayed.replayed) == (kept.same, True)
    assert (late.status, late.replayed) == (201, True)
    assert (begun.status, begun.replayed) == (201, False)
    assert worker.send_request("/hold", "kept").same == kept.same
    assert effects.counts() == {"kept": 1, "no-room": 1, "not-begun": 1}


def limit_files(worker: Worker, most_bytes: int | None) -> None:
    """Limit the file size of the worker, which acts like a full disk."""
    most = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (most if most_bytes is None else most_bytes, most))
