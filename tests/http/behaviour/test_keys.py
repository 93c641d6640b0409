"""Idempotency keys over HTTP: their headers, their characters, and refusals before the handler runs."""

from __future__ import annotations

import httpx
import pytest
from tests.http.behaviour.conftest import on_both_sides, on_the_diagonal
from tests.http.behaviour.demo_server import DemoServer, assert_problem, is_replay, new_name

MALFORMED = {
    "empty": b"",
    "too long": b"x" * 256,
    "a space inside": b"a b",
    "not ASCII": "caf\xe9".encode("latin-1"),
    "half quoted": b'"abc',
    "empty in quotes": b'""',
    "two quoted texts": b'"a","b"',
}


def send(server: DemoServer, name: str, *lines: tuple[str, bytes]) -> httpx.Response:
    headers = [(b"Authorization", b"Bearer ada-token"), *((line.encode(), value) for line, value in lines)]
    return server.client.post(f"/api/trials/plain/{name}", headers=headers, json={})


@on_the_diagonal
@pytest.mark.parametrize("key", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_key_is_refused_before_anything_runs(server: DemoServer, key: bytes) -> None:
    name = new_name()

    answer = send(server, name, ("Idempotency-Key", key))

    assert_problem(answer, 400, "badRequest")
    assert answer.json()["errors"] == [{"field": "Idempotency-Key", "message": answer.json()["detail"]}]
    assert server.runs(name) == 0


@on_the_diagonal
def test_the_longest_key_is_accepted(server: DemoServer) -> None:
    name, key = new_name(), (new_name() + "~!" * 128).encode()[:255]

    answers = [send(server, name, ("Idempotency-Key", key)) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert is_replay(answers[1])


@on_the_diagonal
def test_a_quoted_key_equals_a_bare_one_under_either_header(server: DemoServer) -> None:
    name, key = new_name(), new_name().encode()

    first = send(server, name, ("Idempotency-Key", b'"' + key + b'"'))
    others = [
        send(server, name, ("Idempotency-Key", key)),
        send(server, name, ("X-Idempotency-Key", key)),
        send(server, name, ("X-Idempotency-Key", b'"' + key + b'"')),
        send(server, name, ("X-Idempotency-Key", key), ("Idempotency-Key", b'"' + key + b'"')),
    ]

    assert all(other.content == first.content and is_replay(other) for other in others)
    assert server.runs(name) == 1


@on_the_diagonal
def test_two_headers_that_differ_are_refused(server: DemoServer) -> None:
    name = new_name()

    answer = send(server, name, ("Idempotency-Key", b"one"), ("X-Idempotency-Key", b"two"))

    assert_problem(answer, 400, "badRequest")
    assert answer.json()["errors"] == [{"field": "Idempotency-Key", "message": answer.json()["detail"]}]
    assert server.runs(name) == 0


@on_the_diagonal
@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Idempotency-Key"])
@pytest.mark.parametrize("key", [b"same", b'"same"'], ids=["bare", "quoted"])
def test_two_lines_of_one_header_are_refused_even_when_they_agree(server: DemoServer, header: str, key: bytes) -> None:
    name = new_name()

    answer = send(server, name, (header, key), (header, key))

    assert_problem(answer, 400, "badRequest")
    assert answer.json()["errors"] == [{"field": "Idempotency-Key", "message": answer.json()["detail"]}]
    assert server.runs(name) == 0


@on_both_sides
def test_keys_that_differ_in_case_are_two_keys(server: DemoServer) -> None:
    name, key = new_name(), new_name()

    send(server, name, ("Idempotency-Key", b"a" + key.encode()))
    send(server, name, ("Idempotency-Key", b"A" + key.encode()))

    assert server.runs(name) == 2


@on_both_sides
def test_a_key_is_logged_only_in_part(server: DemoServer) -> None:
    key = "abcdefghijklmnopqrst" + new_name()

    send(server, new_name(), ("Idempotency-Key", key.encode()))

    log = server.wait_for_log("abcdefghijklmnopqrst...")
    assert "idempotency_check" in log
    assert "processing_started" in log
    assert key[:21] not in log
