"""Formats of refusals: the body, and where a standard says so the status, of a response that the middleware sends itself.

    format         body                                        a key reused with another request
    problem_json   RFC 9457 problem                            422, `unprocessable`
    acp_error      {"type", "code", "message"}                 422, `idempotency_conflict`
    ucp_error      {"code", "content"}                         409, `idempotency_conflict`
    stripe_error   {"error": {"type", "code", "message"}}      400, `idempotency_error`

A standard has its own codes for a few refusals. All others have our own code in snake case: `in_doubt`, `expired`,
`outcome_not_kept`, `principal_changed`. A format of the application is a function from a `Refusal` to a JSON value, a
tuple (status, headers, body), or a response of its framework.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from onceward.errors import InvalidOption
from onceward.http.plain_function import check_plain_function
from onceward.http.problem import Refusal, Response, problem

ProblemFormat = Callable[[Refusal], Any]

_CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")
_SERVER_ERROR, _UNAVAILABLE, _CONFLICT = 500, 503, 409

# ACP, section 6.4: the codes, and the messages of its examples.
_ACP = {
    "key_required": ("idempotency_key_required", "Idempotency-Key header is required on all POST requests"),
    "mismatch": ("idempotency_conflict", "Idempotency-Key has already been used with a different request body"),
    "busy": ("idempotency_in_flight", "A request with this Idempotency-Key is currently being processed"),
}
# UCP defines the status 409 for a reused key and no codes. These are the codes of ACP.
_UCP = {"mismatch": (409, "idempotency_conflict"), "busy": (409, "idempotency_in_flight")}
# Stripe: status, type and code. A reused key has no code.
_STRIPE: dict[str, tuple[int, str, str | None]] = {
    "mismatch": (400, "idempotency_error", None),
    "busy": (409, "invalid_request_error", "idempotency_key_in_use"),
    "too_many_keys": (429, "invalid_request_error", "rate_limit"),
}


def problem_json(refusal: Refusal) -> Response:
    """Format a refusal as a problem (RFC 9457). This is the default.

    Args:
        refusal: Why the request is refused.

    Returns:
        The response.
    """
    return problem(
        refusal.status,
        refusal.detail,
        refusal.code,
        refusal.retry_after,
        refusal.errors,
        refusal.headers,
        refusal.kind,
    )


def acp_error(refusal: Refusal) -> Response:
    """Format a refusal as an error of the Agentic Commerce Protocol.

    Args:
        refusal: Why the request is refused.

    Returns:
        The response.
    """
    code, message = _ACP.get(refusal.kind, (_snake(refusal.code), refusal.detail))
    kind = "invalid_request"
    if refusal.status == _UNAVAILABLE:
        kind = "service_unavailable"
    elif refusal.status >= _SERVER_ERROR:
        kind = "processing_error"
    return _json(refusal, refusal.status, {"type": kind, "code": code, "message": message})


def ucp_error(refusal: Refusal) -> Response:
    """Format a refusal as an error of the Universal Commerce Protocol.

    Args:
        refusal: Why the request is refused.

    Returns:
        The response.
    """
    status, code = _UCP.get(refusal.kind, (refusal.status, _snake(refusal.code)))
    return _json(refusal, status, {"code": code, "content": refusal.detail})


def stripe_error(refusal: Refusal) -> Response:
    """Format a refusal as an error of Stripe's API, which Stripe's own clients understand.

    The header `Stripe-Should-Retry` tells these clients whether to retry a 409: they retry every 409 without it.

    Args:
        refusal: Why the request is refused.

    Returns:
        The response.
    """
    plain = "api_error" if refusal.status >= _SERVER_ERROR else "invalid_request_error"
    if refusal.status == _CONFLICT:
        plain = "idempotency_error"
    status, kind, code = _STRIPE.get(refusal.kind, (refusal.status, plain, _snake(refusal.code)))
    error = {"type": kind, "message": refusal.detail} | ({} if code is None else {"code": code})
    retry = b"false" if refusal.retry_after is None else b"true"
    return _json(refusal, status, {"error": error}, (b"stripe-should-retry", retry))


FORMATS: dict[str, ProblemFormat] = {
    "problem_json": problem_json,
    "acp_error": acp_error,
    "stripe_error": stripe_error,
    "ucp_error": ucp_error,
}


def as_format(name: object) -> ProblemFormat:
    """Return the function of a `problem=` option: one of the formats by name, or a function. Raises `InvalidOption`."""
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    if not isinstance(name, str) and callable(name):
        check_plain_function("problem=", name, "the refusal")
        return name
    raise InvalidOption(f"problem= must be one of {', '.join(FORMATS)} or a function of the refusal, got {name!r}")


def _json(refusal: Refusal, status: int, content: object, *headers: tuple[bytes, bytes]) -> Response:
    body = json.dumps(content).encode()
    lines = [(b"content-type", b"application/json"), *refusal.headers, *headers]
    if refusal.retry_after is not None:
        lines.append((b"retry-after", str(refusal.retry_after).encode()))
    lines.append((b"content-length", str(len(body)).encode()))
    return Response(status, tuple(lines), body)


def _snake(code: str) -> str:
    return _CAPITAL.sub(r"_\1", code).lower().replace("-", "_")
