"""A keyed ASGI request on arrival: read once, refused in time, and passed on to the handler unchanged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.http import Rule
from onceward.http.keyed.asgi_request import AsgiBody, AsgiHeaders, VerifiedBody, read, receive_from
from onceward.http.problem import Response
from onceward.http.request.buffered_body import MEMORY_BYTES_MAX

RULE = Rule(max_body_bytes=10)
GONE: dict[str, object] = {"type": "http.disconnect"}


class ScriptedReceive:
    """A server's `receive`, message by message."""

    def __init__(self, pieces: Iterable[bytes], *, gone: bool = False) -> None:
        *first, last = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces] or [GONE]
        self._messages: list[Any] = [*first, last] if gone else [*first, {**last, "more_body": False}]
        self.taken = 0

    async def __call__(self) -> Any:
        self.taken += 1
        return self._messages.pop(0) if self._messages else GONE


def headers(**lines: str) -> AsgiHeaders:
    return AsgiHeaders([(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in lines.items()])


def read_all(
    receive: ScriptedReceive, rule: Rule = RULE, lines: AsgiHeaders | None = None
) -> AsgiBody | Response | None:
    return asyncio.run(read(lines or headers(), rule, receive))


def given_to_handler(received: AsgiBody) -> tuple[bytes, list[bool]]:
    async def main() -> tuple[bytes, list[bool]]:
        body, more = b"", []
        while (message := await received.message()) is not None:
            assert message["type"] == "http.request"
            body += message.get("body", b"")
            more.append(message.get("more_body", False))
        return body, more

    return asyncio.run(main())


def as_body(found: AsgiBody | Response | None) -> AsgiBody:
    assert found is not None
    assert not isinstance(found, Response)
    return found


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=3))
def test_a_body_in_any_pieces_reaches_the_handler_and_has_the_same_digest(pieces: list[bytes]) -> None:
    received = as_body(read_all(ScriptedReceive(pieces)))

    assert received.digest == hashlib.sha256(b"".join(pieces)).digest()
    body, more = given_to_handler(received)
    assert body == b"".join(pieces)
    assert more == [True] * (len(more) - 1) + [False], "the last message says that it is the last"
    received.close()


def test_a_large_body_is_read_again_from_its_file() -> None:
    body = bytes(range(256)) * (MEMORY_BYTES_MAX // 128)
    pieces = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
    received = as_body(read_all(ScriptedReceive(pieces), Rule(max_body_bytes=len(body))))

    assert given_to_handler(received)[0] == body
    received.close()


@pytest.mark.parametrize("pieces", [[b"x" * 11], [b"x" * 10, b"x"], [b"x"] * 11])
def test_a_body_over_the_limit_is_refused(pieces: list[bytes]) -> None:
    found = read_all(ScriptedReceive(pieces))

    assert isinstance(found, Response)
    assert found.status == 413


@pytest.mark.parametrize("length", ["11", "9" * 5000])
def test_a_body_with_a_content_length_over_the_limit_is_refused_unread(length: str) -> None:
    receive = ScriptedReceive([b"x"])
    found = read_all(receive, lines=headers(content_length=length))

    assert isinstance(found, Response)
    assert found.status == 413
    assert receive.taken == 0


@pytest.mark.parametrize("length", ["10", "x", "-5", "\u00b2", ""])
def test_a_content_length_within_the_limit_decides_nothing(length: str) -> None:
    as_body(read_all(ScriptedReceive([b"x" * 10]), lines=headers(content_length=length))).close()


@pytest.mark.parametrize("pieces", [[], [b"x"], [b"x", b"y"]])
def test_a_request_whose_client_disconnects_before_the_end_does_not_run(pieces: list[bytes]) -> None:
    assert read_all(ScriptedReceive(pieces, gone=True)) is None


def test_fields_and_forms_are_read_even_from_a_single_message() -> None:
    rule = Rule(fields=("id",), max_body_bytes=1000)
    one = as_body(read_all(ScriptedReceive([b'{"id": 1, "at": 1}']), rule))
    two = as_body(read_all(ScriptedReceive([b'{"id": 1, "at": 2}']), rule))
    assert one.digest == two.digest

    def form(boundary: str) -> AsgiBody:
        body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--{boundary}--\r\n'.encode()
        lines = headers(content_type=f"multipart/form-data; boundary={boundary}")
        return as_body(read_all(ScriptedReceive([body]), Rule(max_body_bytes=1000), lines))

    assert form("one").digest == form("two").digest


@pytest.mark.parametrize("compare", ["bytes", "body", "json"])
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'),
        ("multipart/form-data; boundary=x", b'{"a": 1}'),
        ("application/json", b'{"a": 1}'),
        ("text/plain", b"not json"),
    ],
)
def test_a_body_is_compared_alike_in_one_message_and_in_several(compare: str, content_type: str, body: bytes) -> None:
    rule, lines = Rule(max_body_bytes=1000, compare=compare), headers(content_type=content_type)

    one, *others = (
        as_body(read_all(ScriptedReceive(pieces), rule, lines))
        for pieces in ([body], [body, b""], [body[:5], body[5:]])
    )

    assert {other.digest for other in others} == {one.digest}


def test_an_unprotected_request_gets_its_body_and_then_the_servers_messages() -> None:
    async def main() -> list[Any]:
        receive = ScriptedReceive([b"a", b"b"])
        received = as_body(await read(headers(), RULE, receive))
        again = receive_from(received, receive)
        return [await again() for _ in range(3)]

    first, second, third = asyncio.run(main())
    assert first["body"] + second["body"] == b"ab"
    assert third == GONE


# A digest that replaces the body.

DIGEST = hashlib.sha256(b"body").digest()
PROMISE = f"sha-256=:{base64.b64encode(DIGEST).decode()}:"
DIGESTED = Rule(digest=True, max_body_bytes=10)


def verified(*pieces: bytes) -> VerifiedBody:
    found = read_all(ScriptedReceive(pieces), DIGESTED, headers(content_digest=PROMISE))
    assert isinstance(found, VerifiedBody)
    return found


def test_a_body_with_a_digest_is_passed_on_unread_and_is_the_same_request_as_one_without() -> None:
    received = verified(b"bo", b"dy")

    assert received.digest == as_body(read_all(ScriptedReceive([b"body"]))).digest
    assert given_to_handler(received) == (b"body", [True, False])
    assert received.broken is None


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"bodz"], 400),
        ([b"bo", b"dx"], 400),
        ([b""], 400),
        ([b"body "], 400),
        ([b"x" * 11], 413),
        ([b"x" * 6, b"x" * 6], 413),
    ],
)
def test_a_body_that_breaks_its_digest_fails_before_the_handler_has_all_of_it(pieces: list[bytes], status: int) -> None:
    received = verified(*pieces)

    async def main() -> list[Any]:
        return [await received.message() for _ in pieces]

    assert asyncio.run(main())[-1] == GONE
    assert received.broken is not None
    assert received.broken.status == status


def test_a_digest_counts_only_if_the_route_allows_it() -> None:
    wrong = headers(content_digest=PROMISE)

    received = as_body(read_all(ScriptedReceive([b"other"]), RULE, wrong))

    assert received.digest == hashlib.sha256(b"other").digest()


# Header lines.


def test_header_lines_with_the_same_name_stay_separate() -> None:
    lines = AsgiHeaders([(b"prefer", b"a"), (b"idempotency-key", b"1"), (b"prefer", b""), (b"prefer", b"b, c")])

    assert lines.all(b"prefer") == ["a", "", "b, c"]
    assert lines.one(b"prefer") == "a"
    assert lines.all(b"idempotency-key") == ["1"]
    assert lines.all(b"x-idempotency-key") == []
    assert lines.one(b"content-type") == ""
    assert AsgiHeaders([(b"idempotency-key", b"")]).all(b"idempotency-key") == [""]
    assert AsgiHeaders([(b"idempotency-key", b""), (b"idempotency-key", b"")]).all(b"idempotency-key") == ["", ""]


def test_only_credential_headers_identify_the_caller() -> None:
    lines = AsgiHeaders([(b"cookie", b"a=1"), (b"accept", b"x"), (b"authorization", b"t"), (b"x-api-key", b"\xff")])

    assert sorted(lines.credentials) == [("authorization", b"t"), ("cookie", b"a=1"), ("x-api-key", b"\xff")]
