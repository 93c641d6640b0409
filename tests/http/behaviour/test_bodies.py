"""Bodies of every kind replay byte for byte, and requests are compared by their content."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends import ONE_OF_EACH_KIND
from tests.http.behaviour.conftest import (
    ASGI_AND_WSGI,
    EVERY,
    StartServer,
    everywhere,
    few,
    for_each,
    on,
    on_both_sides,
    on_the_diagonal,
)
from tests.http.behaviour.demo_server import MISMATCH, DemoServer, assert_problem, is_replay, new_name

BODIES: dict[str, dict[str, Any]] = {
    "204": {"status": 204},
    "binary": {"size": 1000},
    "streamed": {"parts": ["one", "two", "%"]},
}
SIZES: dict[str, dict[str, Any]] = {
    "empty": {"empty": True},
    "3 MB": {"size": 3_000_000},
}
EDGES: dict[str, dict[str, Any]] = {
    "nothing streamed": {"parts": []},
    "64 KiB": {"size": 64 * 1024},
    "a byte more": {"size": 64 * 1024 + 1},
    "304": {"status": 304, "empty": True},
    "a large stream": {"parts": ["%" * 1000] * 40},
}


@everywhere
@pytest.mark.parametrize("plan", BODIES.values(), ids=BODIES.keys())
def test_a_body_replays_byte_for_byte(server: DemoServer, plan: dict[str, Any]) -> None:
    check_replay(server, plan)


@on_the_diagonal
@pytest.mark.parametrize("plan", SIZES.values(), ids=SIZES.keys())
def test_a_body_of_any_size_replays_byte_for_byte(server: DemoServer, plan: dict[str, Any]) -> None:
    check_replay(server, plan)


@on(few("starlette", "flask", "django-asgi", of=EVERY), few("sqlite", of=ONE_OF_EACH_KIND))
@pytest.mark.parametrize("plan", EDGES.values(), ids=EDGES.keys())
def test_a_body_in_an_edge_case_replays_byte_for_byte(server: DemoServer, plan: dict[str, Any]) -> None:
    check_replay(server, plan)


def check_replay(server: DemoServer, plan: dict[str, Any]) -> None:
    name, key = new_name(), new_name()

    first = server.trial(name, key, plan)
    again = server.trial(name, key, plan)

    assert first.status_code == again.status_code == plan.get("status", 200)
    assert first.content == again.content
    assert first.headers.get("content-type") == again.headers.get("content-type")
    assert is_replay(again)
    assert server.runs(name) == 1
    if "size" in plan:
        assert len(again.content) == plan["size"]


@on_the_diagonal
def test_per_exchange_headers_are_not_replayed(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    headers = {
        "Location": "/stories/1", "ETag": '"1"', "X-Colour": "blue", "Cache-Control": "no-store",
        "Set-Cookie": "session=secret", "X-Request-Id": "1",
    }  # fmt: skip

    first = server.trial(name, key, {"status": 201, "headers": headers})
    again = server.trial(name, key, {"status": 201, "headers": headers})

    assert first.headers["set-cookie"] == "session=secret"
    for kept in ("location", "etag", "x-colour", "cache-control", "content-type", "content-length"):
        assert again.headers.get_list(kept) == first.headers.get_list(kept)
    for left_out in ("set-cookie", "x-request-id"):
        assert left_out not in again.headers
    assert len(again.headers.get_list("date")) == 1


@for_each(ASGI_AND_WSGI, few("memory", of=ONE_OF_EACH_KIND))
def test_the_headers_that_are_not_stored_can_be_chosen(start_server: StartServer, framework: str, store: str) -> None:
    server = start_server(framework, store, deny_headers=["X-Colour"])
    name, key = new_name(), new_name()
    plan = {"headers": {"X-Colour": "blue", "X-Shape": "round"}}

    server.trial(name, key, plan)
    again = server.trial(name, key, plan)

    assert "x-colour" not in again.headers
    assert again.headers["x-shape"] == "round"


@on_the_diagonal
def test_an_upload_rebuilt_with_another_boundary_is_the_same_request(server: DemoServer) -> None:
    key, content = new_name(), bytes(range(256)) * 1000

    def upload(data: bytes, name: str = "map.png") -> Any:
        # httpx draws a new boundary for every request, as clients do.
        return server.post("/api/uploads", key, files={"file": (name, data, "image/png")})

    first, again = upload(content), upload(content)

    assert first.status_code == 201
    assert first.request.headers["content-type"] != again.request.headers["content-type"]
    assert again.content == first.content
    assert is_replay(again)
    assert_problem(upload(content + b"x"), *MISMATCH)
    assert_problem(upload(content, "other.png"), *MISMATCH)


@on_the_diagonal
def test_a_body_over_the_limit_is_refused_and_nothing_runs(server: DemoServer) -> None:
    name = new_name()
    plan = {"text": "x" * 1000}

    answer = server.trial(name, new_name(), plan, rule="small")
    unkeyed = server.trial(name, None, plan, rule="small")

    assert_problem(answer, 413, "payloadTooLarge")
    assert unkeyed.status_code == 200, "only requests with a key are held back"
    assert server.runs(name) == 1


@on_the_diagonal
def test_a_body_of_unknown_length_over_the_limit_is_refused_too(server: DemoServer) -> None:
    name = new_name()

    def parts() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(20):
            yield b"x" * 100
        yield b'"}'

    answer = server.post(f"/api/trials/small/{name}", new_name(), content=parts())

    assert_problem(answer, 413, "payloadTooLarge")
    assert server.runs(name) == 0


@on_both_sides
def test_the_default_body_limit_is_ten_mebibytes(server: DemoServer) -> None:
    name = new_name()
    most = 10 * 1024 * 1024
    body = b'{"text": "' + b"x" * (most - 12) + b'"}'

    within = server.post(f"/api/trials/plain/{name}", new_name(), content=body)
    over = server.post(f"/api/trials/plain/{name}", new_name(), content=body + b" ")

    assert within.status_code == 200
    assert_problem(over, 413, "payloadTooLarge")
    assert server.runs(name) == 1


@on_the_diagonal
def test_a_chunked_body_reaches_the_handler_whole_and_replays(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    def parts() -> Iterator[bytes]:
        yield b'{"text": "'
        for _ in range(500):
            yield b"x" * 1000
        yield b'"}'

    answers = [server.post(f"/api/trials/plain/{name}", key, content=parts()) for _ in range(2)]

    assert answers[0].text == answers[1].text == "x" * 500_000
    assert is_replay(answers[1])


@on_the_diagonal
def test_a_response_over_the_limit_is_never_run_a_second_time(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    first = server.trial(name, key, {"size": 200_000}, rule="short")
    again = server.trial(name, key, {"size": 200_000}, rule="short")

    assert len(first.content) == 200_000
    assert_problem(again, 409, "outcome-not-kept")
    assert "retry-after" not in again.headers
    assert server.runs(name) == 1


# Django sends no response when the body of a request ends early.
@on(few("starlette", "flask", "django-asgi", of=EVERY), few("sqlite", of=ONE_OF_EACH_KIND))
def test_a_content_digest_replaces_the_body_if_the_route_allows_it(server: DemoServer) -> None:
    name, key = new_name(), new_name()
    body = b"{}"
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    path, headers = f"/api/trials/digest/{name}", {"Content-Digest": f"sha-256=:{digest}:"}

    answers = [server.post(path, key, content=body, headers=headers) for _ in range(2)]
    lie = server.post(path, new_name(), content=b'{"status": 201}', headers=headers)

    assert answers[0].content == answers[1].content
    assert is_replay(answers[1])
    assert_problem(lie, 400, "badRequest")
