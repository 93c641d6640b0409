"""The body of a keyed request: hashed while it arrives, bounded, and passed on unchanged."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.core.outcome import CHUNK_BYTES_MAX
from onceward.http.request.buffered_body import MEMORY_BYTES_MAX, BodyTooLarge, BufferedBody, promised_digest

MUCH = 4 * MEMORY_BYTES_MAX
JSON = "application/json"


def filled(pieces: Sequence[bytes], content_type: str = JSON, bytes_max: int = MUCH) -> BufferedBody:
    body = BufferedBody(content_type, bytes_max)
    for piece in pieces:
        body.feed(piece)
    return body


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_a_body_can_be_read_any_number_of_times(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    with closing(filled(pieces)) as body:
        assert b"".join(body.pieces()) == b"".join(body.pieces()) == whole
        assert body.file().read() == body.file().read() == whole
        assert body.digest() == body.sha256 == hashlib.sha256(whole).digest()
        assert body.size == len(whole)


@pytest.mark.parametrize(
    "size", [MEMORY_BYTES_MAX - 1, MEMORY_BYTES_MAX, MEMORY_BYTES_MAX + 1, 3 * MEMORY_BYTES_MAX + 7]
)
@pytest.mark.parametrize("piece", [7919, 65536, 10**9])
def test_a_large_body_goes_to_a_file_and_is_read_back_completely(size: int, piece: int) -> None:
    whole = (bytes(range(251)) * (size // 251 + 1))[:size]
    with closing(filled([whole[start : start + piece] for start in range(0, size, piece)])) as body:
        assert (body._file is not None) == (size > MEMORY_BYTES_MAX)
        assert (body._pieces == []) == (size > MEMORY_BYTES_MAX), "nothing of a spooled body stays in memory"
        assert b"".join(body.pieces()) == whole
        assert body.file().read() == whole
        assert b"".join(body.pieces()) == whole
        assert body.digest() == hashlib.sha256(whole).digest()


def test_a_body_in_a_file_is_read_in_bounded_pieces() -> None:
    with closing(filled([b"x" * (2 * MEMORY_BYTES_MAX)])) as body:
        assert max(len(piece) for piece in body.pieces()) <= CHUNK_BYTES_MAX


def test_the_file_of_a_body_is_deleted_with_it() -> None:
    body = filled([b"x" * (MEMORY_BYTES_MAX + 1)])
    file = body._file
    assert file is not None

    body.close()

    assert file.closed


@pytest.mark.parametrize("limit", [0, 1, 10, MEMORY_BYTES_MAX + 1])
def test_a_body_may_be_as_large_as_its_limit_and_not_a_byte_larger(limit: int) -> None:
    with closing(filled([b"x" * limit], bytes_max=limit)) as body, pytest.raises(BodyTooLarge):
        body.feed(b"x")
    with closing(BufferedBody(JSON, limit)) as body, pytest.raises(BodyTooLarge):
        body.feed(b"x" * (limit + 1))


# The fingerprint of a body.


def test_the_chosen_fields_replace_the_body() -> None:
    with (
        closing(filled([b'{"id": 1, "at": 1}'])) as one,
        closing(filled([b'{"at": 2,', b' "id": 1}'])) as retry,
        closing(filled([b'{"id": 2, "at": 1}'])) as other,
    ):
        assert one.digest(("id",)) == retry.digest(("id",)) != other.digest(("id",))
        assert one.digest() != retry.digest()


def test_the_chosen_fields_of_a_body_in_a_file_are_read_too() -> None:
    padding = b" " * MEMORY_BYTES_MAX
    with closing(filled([b'{"id": 1,', padding, b'"at": 1}'])) as one, closing(filled([b'{"id": 1}'])) as other:
        assert one.digest(("id",)) == other.digest(("id",))


@pytest.mark.parametrize("text", [b"[1]", b"no json", b"", b'{"id": NaN}'])
def test_the_whole_body_counts_if_the_fields_cannot_be_read(text: bytes) -> None:
    with closing(filled([text])) as body:
        assert body.digest(("id",)) == hashlib.sha256(text).digest()


def test_a_form_is_identified_by_its_parts_and_a_broken_one_by_its_bytes() -> None:
    def form(boundary: str) -> bytes:
        return f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--{boundary}--\r\n'.encode()

    def digest(boundary: str, whole: bytes) -> bytes:
        with closing(filled([whole], f"multipart/form-data; boundary={boundary}")) as body:
            first = body.digest()
            assert body.digest() == first, "asking twice changes nothing"
            assert b"".join(body.pieces()) == whole
            return first

    assert digest("one", form("one")) == digest("two", form("two"))
    assert digest("one", form("two")) == hashlib.sha256(form("two")).digest()
    assert digest("one", form("one")[:-8]) == hashlib.sha256(form("one")[:-8]).digest()


# A promised digest.


def field(data: bytes) -> str:
    return f":{base64.b64encode(data).decode()}:"


DIGEST = hashlib.sha256(b"body").digest()
OTHER = hashlib.sha256(b"other").digest()
GOOD = f"sha-256={field(DIGEST)}"


@pytest.mark.parametrize(
    ("content_digest", "repr_digest", "promised"),
    [
        (GOOD, "", DIGEST),
        ("", GOOD, DIGEST),
        (f"sha-512={field(bytes(64))}, {GOOD}", "", DIGEST),
        (f"{GOOD},sha-512={field(bytes(64))}", "", DIGEST),
        (f"  {GOOD}  ", "", DIGEST),
        (f"{GOOD};q=1", "", DIGEST),
        (GOOD, f"sha-256={field(OTHER)}", DIGEST),
        (f"sha-512={field(bytes(64))}", GOOD, DIGEST),
        (f"sha-256={field(b'short')}", GOOD, DIGEST),
        ("", "", None),
        (f"sha-512={field(bytes(64))}", "", None),
        (f"x-sha-256={field(DIGEST)}", "", None),
        (f"sha-256={base64.b64encode(DIGEST).decode()}", "", None),
        (f"sha-256={field(DIGEST)}x", "", None),
        ("sha-256=:a=b:", "", None),
        ("sha-256=:A:", "", None),
        (f"sha-256={field(DIGEST + b'x')}", "", None),
    ],
)
def test_the_digest_headers_of_a_request_are_parsed(
    content_digest: str, repr_digest: str, promised: bytes | None
) -> None:
    assert promised_digest(content_digest, repr_digest) == promised


@given(st.binary(min_size=32, max_size=32), st.text(st.characters(max_codepoint=0xFF), max_size=40))
@example(bytes(32), "sha-256=:=:")
def test_every_digest_is_found_and_no_header_fails(digest: bytes, junk: str) -> None:
    assert promised_digest(f"sha-256={field(digest)}", junk) == digest
    promised_digest(junk, f"sha-256=:{junk}:")
