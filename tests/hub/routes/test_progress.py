"""Responses of long operations: progress in lines, and a failure after the first line."""

from __future__ import annotations

import json

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from onceward.errors import StoreUnavailable
from onceward.http import IdempotencyMiddleware
from onceward.hub.routes.progress import Report, long_response, running_total

LINES = {"accept": "application/x-ndjson", "idempotency-key": "k"}


def test_a_failure_after_the_first_line_is_the_last_line_and_a_retry_runs_again() -> None:
    attempts: list[int] = []

    def work(report: Report) -> dict[str, int]:
        attempts.append(1)
        running_total(report, 5)(3)
        if len(attempts) == 1:
            raise StoreUnavailable("the disk is gone")
        return {"deleted_count": 3}

    def route(request: Request) -> Response:
        return long_response(request, "files", work)

    app = IdempotencyMiddleware(Starlette(routes=[Route("/work", route, methods=["POST"])]), store="memory:")
    with TestClient(app) as client:
        failed, again, replayed = (client.post("/work", headers=LINES) for _ in range(3))

    progress = {"progress": {"done": 3, "total": 5, "unit": "files"}}
    lines = [json.loads(line) for line in failed.text.splitlines()]
    assert lines[0] == progress
    assert (lines[1]["problem"]["status"], lines[1]["problem"]["code"]) == (503, "unavailable")
    assert [json.loads(line) for line in again.text.splitlines()] == [progress, {"result": {"deleted_count": 3}}]
    assert (replayed.text, len(attempts)) == (again.text, 2)


def test_lines_are_limited_to_two_in_a_second() -> None:
    def work(report: Report) -> dict[str, int]:
        more = running_total(report, 10_000)
        for _ in range(10_000):
            more(1)
        return {}

    def route(request: Request) -> Response:
        return long_response(request, "files", work)

    app = IdempotencyMiddleware(Starlette(routes=[Route("/work", route, methods=["POST"])]), store="memory:")
    with TestClient(app) as client:
        lines = client.post("/work", headers=LINES).text.splitlines()

    assert 2 <= len(lines) < 100
    assert json.loads(lines[0])["progress"]["done"] == 1
    assert json.loads(lines[-1]) == {"result": {}}
