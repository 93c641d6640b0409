"""Problem responses (RFC 9457). `detail` holds the sentences of the HTTP contract; programs read `code`."""

from __future__ import annotations

import functools
import http
import json

from onceward.core.record import record
from onceward.errors import StoreUnavailable
from onceward.store.failure_log import report

# `Retry-After` while the first request still runs (the minimum), and while the store is down.
BUSY_RETRY_SECONDS = 1
STORE_RETRY_SECONDS = 5

# RFC 9110 renamed these statuses; Python uses the new names from 3.13 on.
_TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
CODES = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "notFound",
    405: "methodNotAllowed",
    409: "conflict",
    413: "payloadTooLarge",
    415: "unsupportedMediaType",
    416: "rangeNotSatisfiable",
    422: "unprocessable",
    429: "tooManyRequests",
    431: "headersTooLarge",
    500: "internal",
    503: "unavailable",
}


@record(frozen=True, slots=True)
class Refusal:
    """The reason why a request is refused, from which a body of any format can be built.

    Attributes:
        status: The HTTP status of the problem response.
        detail: A sentence that says what happened.
        code: The stable code.
        kind: Which refusal of the middleware it is, such as `busy` or `mismatch`; "" for any other.
        retry_after: Seconds to wait before a retry, or None if a retry does not help.
        errors: Pairs of a field and the error found in it.
        headers: Further response headers.
    """

    status: int
    detail: str
    code: str
    kind: str = ""
    retry_after: int | None = None
    errors: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[bytes, bytes], ...] = ()


@record(frozen=True, slots=True)
class Response:
    """A complete response: status, headers and body. `refusal` is the reason of a problem response."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    refusal: Refusal | None = None


@functools.lru_cache(maxsize=256)
def problem(
    status: int,
    detail: str,
    code: str = "",
    retry_after: int | None = None,
    errors: tuple[tuple[str, str], ...] = (),
    headers: tuple[tuple[bytes, bytes], ...] = (),
    kind: str = "",
) -> Response:
    """Build a problem response.

    Args:
        status: The HTTP status.
        detail: A sentence that says what happened.
        code: The stable code. By default it follows from the status.
        retry_after: Seconds for the `Retry-After` header, which is sent only if this is given.
        errors: Pairs of a field and the error found in it.
        headers: Further response headers.
        kind: Which refusal of the middleware it is; see `Refusal`.
    """
    code = code or code_of(status)
    content: dict[str, object] = {
        "type": f"urn:onceward:problem:{code}",
        "title": phrase(status),
        "status": status,
        "detail": detail,
        "code": code,
    }
    if errors:
        content["errors"] = [{"field": field, "message": message} for field, message in errors]
    sent = [(b"content-type", b"application/problem+json"), *headers]
    if retry_after is not None:
        content["retry_after"] = retry_after
        sent.append((b"retry-after", str(retry_after).encode()))
    body = json.dumps(content).encode()
    sent.append((b"content-length", str(len(body)).encode()))
    return Response(status, tuple(sent), body, Refusal(status, detail, code, kind, retry_after, errors, headers))


def code_of(status: int) -> str:
    """Return the code of a status. A status that is not listed has the code of 400 or 500."""
    return CODES.get(status) or CODES[400 if status < 500 else 500]  # noqa: PLR2004  # the first server error


def phrase(status: int) -> str:
    """Return the reason phrase of a status, the same on every Python version."""
    if status in _TITLES:
        return _TITLES[status]
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def busy(retry_after: int = BUSY_RETRY_SECONDS) -> Response:
    return problem(409, "Request is being processed", retry_after=retry_after, kind="busy")


def mismatch() -> Response:
    return problem(422, "Idempotency key already used with different request", kind="mismatch")


def principal_changed() -> Response:
    detail = (
        "This idempotency key was used with other cookies, so it may belong to another caller. The request was not run."
        " The server can identify its callers with principal=, or list the cookies that identify them in session_cookies=."
    )
    return problem(409, detail, "principal-changed", kind="principal_changed")


def in_doubt() -> Response:
    detail = "It is unknown whether this request was carried out. It must not be repeated. An operator has to decide."
    return problem(409, detail, "in-doubt", kind="in_doubt")


def expired() -> Response:
    detail = "The request was carried out, and its response is no longer stored. New work needs a new key."
    return problem(409, detail, "expired", kind="expired")


def not_kept() -> Response:
    detail = "The request was carried out, but its response was not stored."
    return problem(409, detail, "outcome-not-kept", kind="not_kept")


def too_large(bytes_max: int) -> Response:
    detail = f"The body of a request with an idempotency key is limited to {bytes_max} bytes."
    return problem(413, detail, kind="too_large")


def too_many_keys(retry_after: int) -> Response:
    detail = "Too many requests with new idempotency keys. Nothing was done. Retry later with the same key."
    return problem(429, detail, retry_after=retry_after, kind="too_many_keys")


def unavailable() -> Response:
    detail = "The store of idempotency keys is unavailable. Retry with the same key."
    return problem(503, detail, retry_after=STORE_RETRY_SECONDS, kind="unavailable")


def misconfigured() -> Response:
    detail = "The store of idempotency keys is misconfigured. A retry does not help. The cause is in the server's log."
    return problem(500, detail, kind="misconfigured")


def store_failed(error: StoreUnavailable) -> Response:
    """Log why the store failed, and return the response to a request that could not be checked or recorded."""
    report(error)
    return unavailable() if error.retryable else misconfigured()


def wrong_digest(header: str = "Content-Digest") -> Response:
    detail = f"The body does not match the digest in the {header} header."
    return problem(400, detail, errors=((header, detail),))


def key_required(source: str = "the header Idempotency-Key", field: str = "Idempotency-Key") -> Response:
    """Build the response to a request without a key. `source` says in words where the key is expected."""
    detail = f"This request needs {source}."
    return problem(400, detail, errors=((field, detail),), kind="key_required")


def bad_key(detail: str, field: str = "Idempotency-Key") -> Response:
    return problem(400, detail, errors=((field, detail),), kind="bad_key")
