"""Several worker processes behind one socket: they serve concurrently, are replaced when they die, and stop as one."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.hub.hub_process import RunningHub, running_hub, started_hub
from tests.hub.server.raw_http import UnfinishedResponse, app_command, folder_with_database, get
from tests.waiting import until

from onceward.hub.server import serve as serving

TWO = ["--workers", "2"]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return folder_with_database(tmp_path / "data")


def metrics_of(data_dir: Path) -> list[Path]:
    location, prefix = serving._metrics_location(data_dir)
    return list(location.glob(f"{prefix}*"))


@pytest.fixture
def workers_hub(data_dir: Path) -> Iterator[RunningHub]:
    location, prefix = serving._metrics_location(data_dir)
    (location / f"{prefix}left-behind").mkdir()
    with running_hub(data_dir=data_dir, args=TWO, command=app_command("plain")) as hub:
        yield hub
    for left in metrics_of(data_dir):
        shutil.rmtree(left)


def answering(hub: RunningHub, count: int) -> set[int]:
    """Return the worker processes, once there are this many."""
    found: set[int] = set()

    def has_them() -> bool:
        found.add(int(get(hub, "/pid")))
        return len(found) >= count

    until(has_them, f"fewer than {count} processes answer")
    return found


def is_alive(pid: int) -> bool:
    """Return whether the process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_share_one_port_are_restarted_and_stop_together(workers_hub: RunningHub, data_dir: Path) -> None:
    before = answering(workers_hub, 2)
    (metrics,) = metrics_of(data_dir)  # and none of a hub that was killed
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        get(workers_hub, "/die")
    dead = int(workers_hub.wait_for_line(r'"event": "worker_ended".*"pid": (\d+), "exit_code": -9')[1])
    after = answering(workers_hub, 2)

    with closing(UnfinishedResponse(workers_hub, "/stream")) as stream:
        workers_hub.process.terminate()
        assert stream.response.read() == b"resume from 7\n"
    assert workers_hub.wait() == 0

    assert workers_hub.process.pid not in before
    assert after - before
    assert dead in before - after
    lines = workers_hub.log_lines()
    assert len([line for line in lines if "listening on" in line]) == 1
    assert lines.count("app: closed") == 2
    assert not metrics.exists()
    assert not any(is_alive(worker) for worker in after)


def test_ctrl_c_in_a_terminal_reaches_every_process_and_ends_them_cleanly(data_dir: Path) -> None:
    with running_hub(data_dir=data_dir, args=TWO, command=app_command("plain")) as hub:
        answering(hub, 2)
        os.killpg(hub.process.pid, signal.SIGINT)
        assert hub.wait() == 0

    assert hub.log_lines().count("app: closed") == 2
    assert "Traceback" not in "\n".join(hub.log_lines())


def test_workers_do_not_outlive_their_parent(workers_hub: RunningHub) -> None:
    workers = answering(workers_hub, 2)

    workers_hub.process.kill()

    until(lambda: not any(is_alive(worker) for worker in workers), "a worker lives on")
    assert workers_hub.wait() == -signal.SIGKILL
    assert workers_hub.log_lines().count("app: closed") == 2


def test_a_signal_during_the_start_ends_the_workers_quietly(data_dir: Path) -> None:
    with started_hub(data_dir=data_dir, args=TWO, command=app_command("slow-start")) as hub:
        hub.wait_for_line("app: starting")
        assert hub.stop() == 0

    assert "Traceback" not in "\n".join(hub.log_lines())
    assert metrics_of(data_dir) == []


def test_workers_that_never_start_end_the_parent(data_dir: Path) -> None:
    with started_hub(data_dir=data_dir, args=TWO, command=app_command("fails-to-start")) as hub:
        assert hub.wait() == 1

    assert any("the roof is gone" in line for line in hub.log_lines())
