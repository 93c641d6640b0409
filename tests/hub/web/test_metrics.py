"""`/metrics` of one process and of several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.responses import StreamingResponse
from starlette.websockets import WebSocket
from tests.hub.asgi_client import JSON, request, send_request, websocket

from onceward.http.asgi_types import App
from onceward.http.middleware.asgi import IdempotencyMiddleware
from onceward.hub.routes.metrics import router as router_of_metrics
from onceward.hub.web import metrics, problems
from onceward.hub.web.request_log import RequestLogMiddleware


def application() -> App:
    app = FastAPI()
    router = APIRouter()

    @router.post("/notes", status_code=201)
    def create() -> None:
        pass

    @router.get("/notes/{note_id}")
    def note(note_id: str) -> str:
        return note_id

    @router.get("/stream")
    def stream() -> StreamingResponse:
        return StreamingResponse(iter([b"data: x\n\n"]), media_type="text/event-stream")

    @router.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await socket.accept()

    app.include_router(router, prefix="/api")
    app.include_router(router_of_metrics)
    problems.install(app)
    return RequestLogMiddleware(IdempotencyMiddleware(app, store="memory:"))


@pytest.fixture(name="app", scope="module")
def _app() -> App:
    return application()


def scrape(app: App) -> dict[str, float]:
    answer = send_request(app, request("GET", "/metrics"))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    rows = [line.rpartition(" ") for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows if "_created" not in name}


def requests(method: str, route: str, status: int) -> str:
    return f'onceward_http_requests_total{{method="{method}",route="{route}",status="{status}"}}'


def counter_increases(app: App, *scopes: dict[str, Any]) -> dict[str, float]:
    before = scrape(app)
    for scope in scopes:
        send_request(app, scope)
    after = scrape(app)
    return {name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)}


def test_requests_are_counted_by_their_route_template(app: App) -> None:
    counted = counter_increases(app, request("GET", "/api/notes/1"), request("GET", "/api/notes/2"))

    assert counted[requests("GET", "/api/notes/{note_id}", 200)] == 2
    assert counted['onceward_http_request_seconds_count{route="/api/notes/{note_id}"}'] == 2


def test_a_replay_is_counted_under_the_route_that_it_did_not_reach(app: App) -> None:
    keyed = request("POST", "/api/notes", (*JSON, (b"idempotency-key", b"k1")))
    counted = counter_increases(app, dict(keyed), dict(keyed))

    assert counted[requests("POST", "/api/notes", 201)] == 2
    assert counted["idempotency_cache_hit_total"] == 1


def test_unknown_paths_and_methods_add_no_label_values(app: App) -> None:
    counted = counter_increases(
        app,
        *(request("GET", f"/made/up/{number}") for number in range(5)),
        *(request(f"MADE{number}", "/up") for number in range(5)),
        request("DELETE", "/api/notes/1"),
    )

    assert counted[requests("GET", metrics.UNMATCHED, 404)] == 5
    assert counted[requests(metrics.OTHER_METHOD, metrics.UNMATCHED, 404)] == 5
    assert sum(value for name, value in counted.items() if 'status="405"' in name) == 1


def test_streams_are_counted_while_they_are_open_and_not_timed(app: App) -> None:
    counted = counter_increases(app, request("GET", "/api/stream"), websocket("/api/ws"))

    assert counted[requests("GET", "/api/stream", 200)] == 1
    assert counted[requests("GET", "/api/ws", 101)] == 1
    assert not any("seconds" in name and ("stream" in name or "ws" in name) for name in counted)
    assert "onceward_streams" not in counted, "as many as before"


WORKER = """
import os, sys
from onceward.hub.web import metrics
counts = metrics.http_counts()
counts.count_response("GET", "/x", 200)
counts.observe_seconds("/x", 0.01)
counts.stream_opened()
print(os.getpid(), flush=True)
sys.stdin.read()
"""
SHOWING = """
import sys
from onceward.hub.web import metrics
for pid in sys.argv[1:]:
    metrics.forget_worker(int(pid))
print(metrics.render().decode())
"""


def test_several_processes_show_their_sum_and_the_dead_have_no_streams(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def rows(*gone: str) -> list[str]:
        made = subprocess.run(
            [sys.executable, "-c", SHOWING, *gone], env=environment, capture_output=True, text=True, check=True
        )
        return made.stdout.splitlines()

    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    pids = []
    for worker in workers:
        assert worker.stdout is not None
        pids.append(worker.stdout.readline().strip())
    both = rows()
    for worker in workers:
        worker.communicate()
    one = rows(pids[0])

    assert 'onceward_http_requests_total{method="GET",route="/x",status="200"} 2.0' in both
    assert 'onceward_http_request_seconds_count{route="/x"} 2.0' in both
    assert "onceward_streams 2.0" in both
    assert 'onceward_http_requests_total{method="GET",route="/x",status="200"} 2.0' in one
    assert "onceward_streams 1.0" in one
