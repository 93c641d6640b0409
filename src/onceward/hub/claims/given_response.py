"""Responses given by an operator for an HTTP claim in doubt: the client's retry gets them, byte for byte."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceward.core.claim import Entry, Status
from onceward.core.json_text import refused
from onceward.core.outcome import Outcome
from onceward.errors import InvalidInput, OutcomeNotKept
from onceward.http.response.replay import stored_response
from onceward.http.stored.codec import HEAD_SEQ, ResponseCodec
from onceward.http.stored.policy import BODILESS_STATUSES, DENY_HEADERS, RETRIABLE_STATUSES, keeps_status
from onceward.ledger.ledger import CHUNKS_PER_WRITE, Ledger

# Prefix of the middleware's scopes.
_HTTP = "http:"
_LENGTH = "content-length"
HEADER_NAME = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}$"
# A case-insensitive pattern, spelled out because JSON Schema has no flag for it.
DENIED_HEADER = (
    "^(?:"
    + "|".join(
        "".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in name) for name in sorted(DENY_HEADERS)
    )
    + ")$"
)
_NAME = re.compile(HEADER_NAME, re.ASCII)
# A header value consists of printable characters of ISO 8859-1 and tabs.
_VALUE = re.compile(r"[\t -~\xa0-\xff]{0,8192}")
# Stored responses that are read to check that they are encrypted as the new one would be.
_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class GivenResponse:
    """Response given by an operator. A header has one or several values. At most one of the two bodies is set."""

    status: int
    headers: Mapping[str, str | Sequence[str]]
    body: str | None = None
    body_base64: str | None = None


def is_http(scope: str) -> bool:
    """Return whether a scope, without its namespace, is that of HTTP requests."""
    return scope.startswith(_HTTP)


def checked_response(given: GivenResponse, codec: ResponseCodec) -> tuple[int, tuple[tuple[bytes, bytes], ...], bytes]:
    """Return the status, headers and body to store, or raise `InvalidInput` if they could not be replayed exactly."""
    status = given.status
    if not keeps_status(status):
        never = ", ".join(map(str, sorted(RETRIABLE_STATUSES)))
        raise refused("response.status", f"must be 200 to 499, except {never}, on which clients retry; got {status}")
    body = _body(given)
    if body and status in BODILESS_STATUSES:
        raise refused("response.body", f"must be empty: a {status} response has no body")
    if len(body) > codec.inline_bytes_max:
        raise refused("response.body", f"must be at most {codec.inline_bytes_max} bytes, got {len(body)}")
    headers = [
        (name, value)
        for name, values in given.headers.items()
        for value in ([values] if isinstance(values, str) else values)
    ]
    for name, value in headers:
        _check_header(name, value)
    lengths = [value for name, value in headers if name.lower() == _LENGTH]
    if status in BODILESS_STATUSES and lengths:
        raise refused("response.headers", f"must not have Content-Length: a {status} response has no body")
    if lengths and lengths != [str(len(body))]:
        raise refused(
            "response.headers", f"has Content-Length {', '.join(lengths)}, but the body has {len(body)} bytes"
        )
    if not lengths and status not in BODILESS_STATUSES:
        headers.append((_LENGTH, str(len(body))))
    return status, tuple((name.encode(), value.encode("latin-1")) for name, value in headers), body


def kept_response(
    codec: ResponseCodec, entry: Entry, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes
) -> Outcome:
    """Return the outcome from which a retry replays this response, encrypted if the codec encrypts."""
    try:
        outcome, _ = codec.encode_response(entry, status, headers, body)
    except OutcomeNotKept as error:
        raise refused("response.headers", str(error)) from None
    return outcome


async def check_readable(ledger: Ledger, codec: ResponseCodec, scope: str) -> None:
    """Refuse to write a response that the application could not read: it would respond 409 instead of replaying it."""
    page = await ledger.scan(scope, Status.COMPLETED, limit=_SAMPLES)
    kept = [entry for entry in page.entries if entry.outcome.code is not None and entry.outcome.body is not None]
    if kept and not any(stored_response(codec, entry).status == entry.outcome.code for entry in kept):
        known = (
            "they are encrypted" if codec.encryption is None else "they are encrypted with other keys, or not at all"
        )
        raise InvalidInput(
            f"the responses stored in this scope cannot be read: {known}. Set idempotency.encryption_keys to the keys"
            " of the application that stored them (ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS)",
            (("response", "would not be encrypted like the stored responses"),),
        )


async def response_body(ledger: Ledger, codec: ResponseCodec, entry: Entry) -> bytes | None:
    """Return the body of a stored response, or None if it was not stored or cannot be decrypted here."""
    if entry.outcome.body is not None:
        response = stored_response(codec, entry)
        return response.body if response.status == entry.outcome.code else None
    if codec.encryption is not None or not entry.outcome.chunks:
        return None
    found: list[bytes] = []
    # The first chunk is the response head.
    while page := await ledger.chunks(entry, HEAD_SEQ + len(found), CHUNKS_PER_WRITE):
        found += page
    return b"".join(found)


def _body(given: GivenResponse) -> bytes:
    if given.body is not None and given.body_base64 is not None:
        raise refused("response.body", "cannot be combined with body_base64")
    if given.body_base64 is None:
        return (given.body or "").encode()
    try:
        return base64.b64decode(given.body_base64, validate=True)
    except (binascii.Error, ValueError):
        raise refused("response.body_base64", "is not valid base64") from None


def _check_header(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise refused("response.headers", f"contains {name[:64]!r}, which is not a valid header name")
    if name.lower() in DENY_HEADERS:
        raise refused(
            "response.headers",
            f"must not contain {name}: it is never stored, because it applies to one connection or one response only",
        )
    if not _VALUE.fullmatch(value) or value != value.strip(" \t"):
        raise refused("response.headers", f"has an invalid value for {name}")
