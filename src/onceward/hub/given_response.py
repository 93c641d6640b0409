"""The response that an operator gives for an HTTP claim in doubt: the client's retry gets it, byte for byte."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceward.core.claim import Entry, Status
from onceward.core.outcome import Outcome
from onceward.core.response import BODILESS_STATUSES, DENY_HEADERS, RETRIABLE_STATUSES, keeps_status
from onceward.core.text import refused
from onceward.errors import InvalidInput, OutcomeNotKept
from onceward.http.kept import HEAD_SEQ, Form
from onceward.http.replay import kept_answer
from onceward.ledger import CHUNKS_PER_WRITE, Ledger

# The scopes of the middleware.
_HTTP = "http:"
_LENGTH = "content-length"
HEADER_NAME = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}$"
# In any case, as schemas of JSON have it.
DENIED_HEADER = (
    "^(?:"
    + "|".join(
        "".join(f"[{one}{one.upper()}]" if one.isalpha() else one for one in name) for name in sorted(DENY_HEADERS)
    )
    + ")$"
)
_NAME = re.compile(HEADER_NAME, re.ASCII)
# Printable characters of ISO 8859-1, and tabs: what a header can carry.
_VALUE = re.compile(r"[\t -~\xa0-\xff]{0,8192}")
# How many kept responses are read to see whether they are encrypted as this one would be.
_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Given:
    """A response as an operator gives it. A header has one value, or several. At most one of the two bodies is given."""

    status: int
    headers: Mapping[str, str | Sequence[str]]
    body: str | None = None
    body_base64: str | None = None


def is_http(scope: str) -> bool:
    """Whether the claims of a scope, without its namespace, are those of HTTP requests."""
    return scope.startswith(_HTTP)


def checked_response(given: Given, form: Form) -> tuple[int, tuple[tuple[bytes, bytes], ...], bytes]:
    """Status, headers and body to keep; `InvalidInput` for a response that cannot be replayed as it is."""
    status = given.status
    if not keeps_status(status):
        never = ", ".join(map(str, sorted(RETRIABLE_STATUSES)))
        raise refused("response.status", f"must be 200 to 499, but not {never}: clients retry on these; got {status}")
    body = _body(given)
    if body and status in BODILESS_STATUSES:
        raise refused("response.body", f"must be empty: a {status} response has no body")
    if len(body) > form.inline_bytes_max:
        raise refused("response.body", f"must be at most {form.inline_bytes_max} bytes, got {len(body)}")
    headers = [
        (name, value) for name, said in given.headers.items() for value in ([said] if isinstance(said, str) else said)
    ]
    for name, value in headers:
        _check_header(name, value)
    lengths = [value for name, value in headers if name.lower() == _LENGTH]
    if status in BODILESS_STATUSES and lengths:
        raise refused("response.headers", f"must not have Content-Length: a {status} response has no body")
    if lengths and lengths != [str(len(body))]:
        raise refused(
            "response.headers", f"has Content-Length: {', '.join(lengths)}, but the body has {len(body)} bytes"
        )
    if not lengths and status not in BODILESS_STATUSES:
        headers.append((_LENGTH, str(len(body))))
    return status, tuple((name.encode(), value.encode("latin-1")) for name, value in headers), body


def kept_response(
    form: Form, entry: Entry, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes
) -> Outcome:
    """The outcome of an entry whose retry gets this response; encrypted, where responses are."""
    try:
        outcome, _ = form.whole(entry, status, headers, body)
    except OutcomeNotKept as error:
        raise refused("response.headers", str(error)) from None
    return outcome


async def check_readable(ledger: Ledger, form: Form, scope: str) -> None:
    """Refuse to write a response in another form than the application's: it would answer 409 instead of replaying it."""
    page = await ledger.scan(scope, Status.COMPLETED, limit=_SAMPLES)
    kept = [entry for entry in page.entries if entry.outcome.code is not None and entry.outcome.body is not None]
    if kept and not any(kept_answer(form, entry).status == entry.outcome.code for entry in kept):
        known = "they are encrypted" if form.seal is None else "they are encrypted with other keys, or not at all"
        raise InvalidInput(
            f"the responses that are kept in this scope cannot be read: {known}. Set idempotency.encryption_keys to the"
            " keys of the application that keeps them (ONCEWARD_IDEMPOTENCY__ENCRYPTION_KEYS)",
            (("response", "would not be encrypted as the kept responses are"),),
        )


async def response_body(ledger: Ledger, form: Form, entry: Entry) -> bytes | None:
    """The body of a kept response; None when it was not kept, or is encrypted in a way that cannot be read here."""
    if entry.outcome.body is not None:
        answer = kept_answer(form, entry)
        return answer.body if answer.status == entry.outcome.code else None
    if form.seal is not None or not entry.outcome.chunks:
        return None
    found: list[bytes] = []
    # The first chunk is the head.
    while page := await ledger.chunks(entry, HEAD_SEQ + len(found), CHUNKS_PER_WRITE):
        found += page
    return b"".join(found)


def _body(given: Given) -> bytes:
    if given.body is not None and given.body_base64 is not None:
        raise refused("response.body", "cannot be given together with body_base64")
    if given.body_base64 is None:
        return (given.body or "").encode()
    try:
        return base64.b64decode(given.body_base64, validate=True)
    except (binascii.Error, ValueError):
        raise refused("response.body_base64", "is not base64") from None


def _check_header(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise refused("response.headers", f"has {name[:64]!r}, which is not the name of a header")
    if name.lower() in DENY_HEADERS:
        raise refused("response.headers", f"must not have {name}: it belongs to one connection or one exchange")
    if not _VALUE.fullmatch(value) or value != value.strip(" \t"):
        raise refused("response.headers", f"has a value of {name} that a header cannot carry")
