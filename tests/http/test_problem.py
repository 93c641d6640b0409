"""Problem responses: the fields for programs, and the sentences for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from onceward.http import problem
from onceward.http.problem import Response


@pytest.mark.parametrize(
    ("made", "status", "code", "sentence", "retry_after"),
    [
        (problem.busy, 409, "conflict", "Request is being processed", 1),
        (problem.mismatch, 422, "unprocessable", "Idempotency key already used with different request", None),
        (problem.in_doubt, 409, "in-doubt", "It is unknown whether", None),
        (problem.expired, 409, "expired", "New work needs a new key", None),
        (problem.not_kept, 409, "outcome-not-kept", "its response was not stored.", None),
        (lambda: problem.too_large(10), 413, "payloadTooLarge", "limited to 10 bytes", None),
        (problem.unavailable, 503, "unavailable", "Retry with the same key", 5),
        (problem.key_required, 400, "badRequest", "Idempotency-Key", None),
        (problem.wrong_digest, 400, "badRequest", "digest", None),
        (lambda: problem.problem(400, "bad"), 400, "badRequest", "bad", None),
    ],
    ids=[
        "busy",
        "mismatch",
        "in-doubt",
        "expired",
        "not-kept",
        "too-large",
        "unavailable",
        "key-required",
        "wrong-digest",
        "plain",
    ],
)
def test_a_problem_names_its_type_status_and_detail(
    made: Callable[[], Response], status: int, code: str, sentence: str, retry_after: int | None
) -> None:
    answer = made()
    headers = dict(answer.headers)
    content: dict[str, Any] = json.loads(answer.body)

    assert answer.status == content["status"] == status
    assert content["code"] == code
    assert content["type"] == f"urn:onceward:problem:{code}"
    assert sentence in content["detail"]
    assert content["title"]
    assert content.get("retry_after") == retry_after
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(answer.body)).encode()
    assert headers.get(b"retry-after") == (None if retry_after is None else str(retry_after).encode())


def test_only_temporary_problems_have_retry_after() -> None:
    """Our client retries a 409 only with `Retry-After`: the other two would never change."""
    assert any(name == b"retry-after" for name, _ in problem.busy().headers)
    for answer in (problem.in_doubt(), problem.not_kept(), problem.mismatch()):
        assert all(name != b"retry-after" for name, _ in answer.headers)


def test_a_detail_in_any_language_is_sent_whole() -> None:
    answer = problem.problem(400, "Schlüssel \u20ac")

    assert json.loads(answer.body)["detail"] == "Schlüssel \u20ac"
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()
