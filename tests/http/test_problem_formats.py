"""Formats of refusals: status, body and headers for each of the formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onceward.errors import InvalidOption
from onceward.http import acp_error, problem, problem_json, stripe_error, ucp_error
from onceward.http.problem import Response
from onceward.http.problem_formats import as_format


def body_of(response: Response, problem_format: Any) -> tuple[int, Any, dict[bytes, bytes]]:
    assert response.refusal is not None
    made = problem_format(response.refusal)
    headers = dict(made.headers)
    assert headers[b"content-length"] == str(len(made.body)).encode()
    return made.status, json.loads(made.body), headers


@pytest.mark.parametrize(
    "made", [problem.busy(7), problem.mismatch(), problem.key_required(), problem.unavailable(), problem.in_doubt()]
)
def test_a_problem_is_rebuilt_from_its_refusal(made: Response) -> None:
    assert made.refusal is not None

    assert problem_json(made.refusal) == made


@pytest.mark.parametrize(
    ("response", "status", "kind", "code"),
    [
        (problem.key_required(), 400, "invalid_request", "idempotency_key_required"),
        (problem.bad_key("no"), 400, "invalid_request", "bad_request"),
        (problem.mismatch(), 422, "invalid_request", "idempotency_conflict"),
        (problem.busy(), 409, "invalid_request", "idempotency_in_flight"),
        (problem.in_doubt(), 409, "invalid_request", "in_doubt"),
        (problem.expired(), 409, "invalid_request", "expired"),
        (problem.not_kept(), 409, "invalid_request", "outcome_not_kept"),
        (problem.too_many_keys(3), 429, "invalid_request", "too_many_requests"),
        (problem.unavailable(), 503, "service_unavailable", "unavailable"),
        (problem.misconfigured(), 500, "processing_error", "internal"),
    ],
)
def test_an_error_of_acp(response: Response, status: int, kind: str, code: str) -> None:
    found, body, headers = body_of(response, acp_error)

    assert (found, body["type"], body["code"], set(body)) == (status, kind, code, {"type", "code", "message"})
    assert headers[b"content-type"] == b"application/json"
    assert (b"retry-after" in headers) == (response.refusal is not None and response.refusal.retry_after is not None)


@pytest.mark.parametrize(
    ("response", "status", "code"),
    [
        (problem.mismatch(), 409, "idempotency_conflict"),
        (problem.busy(), 409, "idempotency_in_flight"),
        (problem.unavailable(), 503, "unavailable"),
        (problem.principal_changed(), 409, "principal_changed"),
    ],
)
def test_an_error_of_ucp(response: Response, status: int, code: str) -> None:
    found, body, _ = body_of(response, ucp_error)

    assert (found, body["code"], set(body)) == (status, code, {"code", "content"})


@pytest.mark.parametrize(
    ("response", "status", "kind", "code", "retry"),
    [
        (problem.mismatch(), 400, "idempotency_error", None, b"false"),
        (problem.busy(), 409, "invalid_request_error", "idempotency_key_in_use", b"true"),
        (problem.in_doubt(), 409, "idempotency_error", "in_doubt", b"false"),
        (problem.expired(), 409, "idempotency_error", "expired", b"false"),
        (problem.key_required(), 400, "invalid_request_error", "bad_request", b"false"),
        (problem.too_many_keys(3), 429, "invalid_request_error", "rate_limit", b"true"),
        (problem.unavailable(), 503, "api_error", "unavailable", b"true"),
        (problem.misconfigured(), 500, "api_error", "internal", b"false"),
    ],
)
def test_an_error_of_stripe_tells_its_clients_whether_to_retry(
    response: Response, status: int, kind: str, code: str | None, retry: bytes
) -> None:
    found, body, headers = body_of(response, stripe_error)

    assert (found, body["error"]["type"], body["error"].get("code")) == (status, kind, code)
    assert headers[b"stripe-should-retry"] == retry


@pytest.mark.parametrize("wrong", ["xml", "", None, 3])
def test_an_unknown_format_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidOption):
        as_format(wrong)


async def _async_format(_refusal: object) -> dict[str, str]:
    return {}


@pytest.mark.parametrize("wrong", [_async_format, object])
def test_a_format_that_cannot_be_called_with_a_refusal_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="must be a plain function of the refusal"):
        as_format(wrong)
