"""The hub as a user runs it: it responds, logs, stores its data, counts over all workers, and ends its streams."""

from __future__ import annotations

import http.client
import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.hub.hub_process import SERVE, RunningHub, running_hub
from tests.hub.server.raw_http import connect, get
from tests.servers.postgres import PostgresServer


def post(hub: RunningHub, path: str, content: object, key: str) -> tuple[int, Any]:
    with closing(connect(hub)) as connection:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        connection.request("POST", path, json.dumps(content), headers)
        response = connection.getresponse()
        return response.status, json.load(response)


def requests_of(hub: RunningHub) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in hub.log_lines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


def workers_of(hub: RunningHub) -> list[int]:
    """Return its child processes without Python's resource tracker."""
    pid = hub.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_hub_on_an_empty_folder_responds_logs_and_keeps_its_data(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running_hub(data_dir=data_dir, command=SERVE) as hub:
        first = post(hub, "/api/v1/topics", {"title": "kept"}, "one")
        assert get(hub, "/readyz")
        with closing(connect(hub)) as connection:
            connection.request("GET", "/api/v1/events/stream?after=0")
            stream: http.client.HTTPResponse = connection.getresponse()
            assert stream.readline()
            hub.process.terminate()
            last = stream.read().decode().split("\n\n")[-2]
        assert hub.wait() == 0
    with running_hub(data_dir=data_dir, command=SERVE) as again:
        replayed = post(again, "/api/v1/topics", {"title": "kept"}, "one")

    assert first[0] == 201
    assert replayed == first
    assert f"id: {first[1]['event_id']}" in last.splitlines(), "it says where to resume"
    assert [line["path"] for line in requests_of(hub)] == ["/api/v1/topics", "/readyz", "/api/v1/events/stream"]
    assert "Traceback" not in "\n".join(hub.log_lines() + again.log_lines())


def test_workers_share_a_database_and_are_counted_together(tmp_path: Path, postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    args = ["--workers", "2", "--database", url]
    with running_hub(data_dir=tmp_path / "data", args=args, command=SERVE) as hub:
        answers = [post(hub, "/api/v1/topics", {"title": str(number)}, str(number)) for number in range(12)]
        metrics = get(hub, "/metrics").decode().splitlines()
        announced = next(line for line in hub.log_lines() if "listening" in line)
        with closing(connect(hub)) as connection:
            connection.request("GET", "/api/v1/events/stream")
            assert connection.getresponse().readline()
            assert "onceward_streams 1.0" in get(hub, "/metrics").decode().splitlines()
            for worker in workers_of(hub):
                os.kill(worker, signal.SIGKILL)
        hub.wait_for_line('"event": "worker_ended".*"exit_code": -9')
        after = get(hub, "/metrics").decode().splitlines()

    assert "onceward_streams 0.0" in after, "streams of dead workers are not open"
    assert 'onceward_http_requests_total{method="POST",route="/api/v1/topics",status="201"} 12.0' in after
    assert [status for status, _ in answers] == [201] * 12
    assert 'onceward_http_requests_total{method="POST",route="/api/v1/topics",status="201"} 12.0' in metrics
    assert announced.endswith(f"data, rows in {url})")
    assert not list((tmp_path / "data").glob("*.db")), "claims are beside the rows"
