"""Starting, stopping in the middle of everything, and starting again: nothing is lost, nothing is done twice."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from tests.backends import Servers
from tests.faults.hub.followers import KINDS, SocketFollower
from tests.faults.hub_database import connected_to, event_ids, written
from tests.hub.hub_process import SERVE, running_hub, started_hub
from tests.hub.raw_client import Caller, HubResponse, workers_of
from tests.waiting import SECONDS_MAX

TOPICS = "/api/v1/topics"
CLIENTS = 6
# The promise is two seconds. On a machine that is busy with other tests it takes longer by the clock, not by the work.
START_CPU_SECONDS_MAX = 2.0
# On a slow machine: a multiple of what the import of the largest packages takes there. It is 2.1 to 2.7.
START_IMPORTS_MAX = 4.0


class Clients:
    """Post messages, each with its own key, until stopped; a disconnected client retries with the same key."""

    def __init__(self, ask: Caller, path: str) -> None:
        self._ask = ask
        self._path = path
        self._over = threading.Event()
        self._numbers = itertools.count()
        self._many = threading.Semaphore(0)
        self.first: dict[str, HubResponse] = {}
        self.cut: list[str] = []
        self._threads = [threading.Thread(target=self._post) for _ in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()

    def wait_for_answers(self, count: int) -> None:
        for _ in range(count):
            assert self._many.acquire(timeout=SECONDS_MAX)

    def _post(self) -> None:
        while not self._over.is_set():
            key = f"stop-{next(self._numbers)}"
            try:
                self.first[key] = self._ask.post(self._path, message(key), key=key)
            except OSError:
                self.cut.append(key)
                return
            self._many.release()


def import_cpu_seconds() -> float:
    """Measure what a process needs on this machine to import the largest packages of a hub."""
    program = "import time, fastapi, sqlalchemy, structlog, jinja2; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


def message(key: str) -> dict[str, str]:
    return {"sender": "client", "content": key}


# PostgreSQL is stopped and started under load by `make soak-hub` and by the test of outages.
@pytest.fixture(params=["sqlite"])
def location(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """Return a folder, the URL of the database, and the arguments."""
    data_dir = tmp_path / "data"
    if request.param == "sqlite":
        yield data_dir, f"sqlite:///{data_dir}/hub.db", ["--workers", "2"]
    else:
        url = servers.postgres.create_database()
        yield data_dir, url, ["--database", url]


def test_it_is_ready_soon_stops_cleanly_under_load_and_misses_nothing_after_a_restart(
    location: tuple[Path, str, list[str]], record_property: Callable[[str, object], None]
) -> None:
    data_dir, url, args = location
    with ExitStack() as stack:
        began = time.monotonic()
        hub = stack.enter_context(running_hub(data_dir=data_dir, args=args, command=SERVE))
        start_seconds = time.monotonic() - began
        start_cpu_seconds = max(cpu_seconds(pid) for pid in (hub.process.pid, *workers_of(hub)))
        record_property("start_seconds", round(start_seconds, 2))
        port = str(hub.port)
        ask = Caller(hub.port)
        path = f"{TOPICS}/{ask.topic()}/messages"
        followers = [stack.enter_context(kind(hub.port)) for kind in KINDS]
        with Clients(ask, path) as clients:
            clients.wait_for_answers(30)
            hub.process.terminate()
            began = time.monotonic()
            assert hub.wait() == 0
            record_property("stop_seconds", round(time.monotonic() - began, 2))
        streams = [one for one in followers if one.errors]
        sockets = [one for one in streams if isinstance(one, SocketFollower)]

        again = stack.enter_context(running_hub(data_dir=data_dir, args=[*args, "--port", port], command=SERVE))
        check_that_a_second_is_refused(data_dir.parent / "second", port)
        answers = {
            key: ask.request_until_final("POST", path, message(key), key=key) for key in [*clients.first, *clients.cut]
        }
        database = stack.enter_context(connected_to(url))
        last = written(database)["last event"]
        given = [follower.wait_for(last) for follower in followers]

        assert start_cpu_seconds < START_CPU_SECONDS_MAX or start_cpu_seconds < START_IMPORTS_MAX * import_cpu_seconds()
        assert {answer.status for answer in clients.first.values()} == {201}, "what was taken on was finished"
        assert all(answers[key].body == first.body for key, first in clients.first.items())
        assert all(answers[key].replayed for key in clients.first)
        assert {answer.status for answer in answers.values()} == {201}
        assert written(database)["messages"] == len(answers)
        assert given == [event_ids(database)] * 3
        assert len(streams) == 2, "both kinds of streams got the error"
        for follower in streams:
            error = follower.errors[0]
            assert error["code"] == "stopping"
            assert error["after_event_id"] in follower.ids
        assert sockets[0].closings[0] == (1012, f"resume after {sockets[0].errors[0]['after_event_id']}")
        for one in (hub, again):
            assert "Traceback" not in "\n".join(one.log_lines())


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def check_that_a_second_is_refused(data_dir: Path, port: str) -> None:
    with started_hub(data_dir=data_dir, args=["--port", port]) as second:
        assert second.wait() == 2
    (line,) = second.log_lines()
    assert f"port {port} on 127.0.0.1 is in use by another program" in line
    assert not data_dir.exists()
