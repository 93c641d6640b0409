"""Problem answers (RFC 9457). The sentences of the seeds are the `detail`; `code` is what programs look at."""

from __future__ import annotations

import functools
import http
import json

from onceward.core.record import record

# The shortest pause that a client is asked for while the work is under way, and the pause while the store is down.
BUSY_RETRY_SECONDS = 1
STORE_RETRY_SECONDS = 5

# RFC 9110 renamed these; Python followed in 3.13.
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
    500: "internal",
    503: "unavailable",
}


@record(frozen=True, slots=True)
class Answer:
    """A whole response of the middleware's own."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@functools.lru_cache(maxsize=256)
def problem(
    status: int,
    detail: str,
    code: str = "",
    retry_after: int | None = None,
    errors: tuple[tuple[str, str], ...] = (),
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> Answer:
    """A problem answer; `code` follows the status unless a finer one is given.

    `errors` says field by field what is wrong, `headers` are sent besides the answer's own.
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
    return Answer(status, tuple(sent), body)


def code_of(status: int) -> str:
    """The code of a status; a status without one of its own has that of its class."""
    return CODES.get(status) or CODES[400 if status < 500 else 500]  # noqa: PLR2004  # where the classes meet


def phrase(status: int) -> str:
    """What the status is called, the same on every Python."""
    if status in _TITLES:
        return _TITLES[status]
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def busy(retry_after: int = BUSY_RETRY_SECONDS) -> Answer:
    return problem(409, "Request is being processed", retry_after=retry_after)


def mismatch() -> Answer:
    return problem(422, "Idempotency key already used with different request")


def principal_changed() -> Answer:
    detail = (
        "This idempotency key was used with other cookies, so it may be another caller's. Nothing was run. The server"
        " can name its callers with principal=, or say with session_cookies= which cookies identify them."
    )
    return problem(409, detail, "principal-changed")


def in_doubt() -> Answer:
    detail = "Nobody knows whether this request was carried out, and it may not be repeated. An operator has to decide."
    return problem(409, detail, "in-doubt")


def not_kept() -> Answer:
    return problem(409, "Request was carried out, but its response was not kept", "outcome-not-kept")


def too_large(bytes_max: int) -> Answer:
    return problem(413, f"The body of a request with an idempotency key is limited to {bytes_max} bytes")


def unavailable() -> Answer:
    detail = "The store of idempotency keys does not answer. Retry with the same key."
    return problem(503, detail, retry_after=STORE_RETRY_SECONDS)


def wrong_digest(header: str = "Content-Digest") -> Answer:
    detail = "The body does not have the digest that the request promised"
    return problem(400, detail, errors=((header, detail),))


def key_required() -> Answer:
    return bad_key("This request needs an Idempotency-Key header")


def bad_key(detail: str) -> Answer:
    return problem(400, detail, errors=(("Idempotency-Key", detail),))
