"""A response is decoded as it was encoded, encrypted or not, and only in its own entry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.claim import Entry, Status
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX, Outcome
from onceward.errors import OutcomeNotKept
from onceward.http.stored.codec import HEAD_SEQ, ResponseCodec
from onceward.http.stored.encryption import OVERHEAD_BYTES, Encryption
from onceward.http.stored.policy import Headers

KEY = bytes(range(32))
PLAIN = ResponseCodec(frozenset({b"set-cookie"}))
ENCRYPTED = ResponseCodec(frozenset({b"set-cookie"}), Encryption([KEY]))
ENTRY = Entry("onceward:http:user:ann", "k", "f", Status.IN_PROGRESS, 3, 1, "w", "h", True, 1, None, 1)
KINDS: Headers = ((b"content-type", b"text/plain"), (b"X-Twice", b"1"), (b"X-Twice", b"2"))

codecs = pytest.mark.parametrize("codec", [PLAIN, ENCRYPTED], ids=["plain", "sealed"])
headers = st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4).map(tuple)


def read(
    codec: ResponseCodec, entry: Entry, outcome: Outcome, chunks: tuple[bytes, ...]
) -> tuple[int | None, Headers, bytes]:
    """Decode a stored response as for a retry."""
    status, lines = codec.decode_settled(replace(entry, outcome=outcome))
    if outcome.body is not None:
        return status, lines, codec.decode_body(entry, outcome.body)
    assert outcome.chunks == len(chunks)
    assert (status, lines) == codec.decode_head(entry, chunks[0])
    return status, lines, b"".join(codec.decode_chunks(entry, HEAD_SEQ + 1, chunks[1:]))


@codecs
@given(status=st.integers(200, 499), lines=headers, body=st.binary(max_size=200))
def test_a_response_comes_back_as_it_was(codec: ResponseCodec, status: int, lines: Headers, body: bytes) -> None:
    outcome, chunks = codec.encode_response(ENTRY, status, lines, body)

    kept = tuple(line for line in lines if line[0].lower() != b"set-cookie")
    assert read(codec, ENTRY, outcome, chunks) == (status, kept, body)


@codecs
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_body_is_stored_in_its_entry_up_to_64_kib_and_in_chunks_above(codec: ResponseCodec, over: int) -> None:
    body = b"x" * (codec.inline_bytes_max + over)

    outcome, chunks = codec.encode_response(ENTRY, 200, KINDS, body)

    assert (outcome.body is None) == (over > 0) == bool(chunks)
    assert outcome.body is None or len(outcome.body) <= INLINE_BYTES_MAX
    assert read(codec, ENTRY, outcome, chunks) == (200, KINDS, body)


@codecs
def test_a_large_body_comes_back_from_chunks_that_the_ledger_accepts(codec: ResponseCodec) -> None:
    body = bytes(range(256)) * 1200

    outcome, chunks = codec.encode_response(ENTRY, 201, KINDS, body)

    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX
    assert len(chunks) == outcome.chunks > 4
    assert read(codec, ENTRY, outcome, chunks) == (201, KINDS, body)


@codecs
def test_an_empty_body_is_stored_and_differs_from_no_body(codec: ResponseCodec) -> None:
    outcome, chunks = codec.encode_response(ENTRY, 204, (), b"")

    assert outcome.kept
    assert read(codec, ENTRY, outcome, chunks) == (204, (), b"")


@codecs
@given(st.lists(st.binary(max_size=30), max_size=5), st.integers(2, 50))
def test_a_stream_comes_back_in_its_original_pieces(codec: ResponseCodec, pieces: list[bytes], seq: int) -> None:
    assert codec.decode_chunks(ENTRY, seq, codec.encode_chunks(ENTRY, seq, pieces)) == pieces


@codecs
def test_headers_are_excluded_in_any_spelling(codec: ResponseCodec) -> None:
    outcome, _ = codec.encode_response(ENTRY, 200, [(b"Set-Cookie", b"session=secret"), (b"X-A", b"1")], b"")

    assert codec.decode_settled(replace(ENTRY, outcome=outcome)) == (200, ((b"X-A", b"1"),))


def test_encryption_takes_its_overhead_from_the_body() -> None:
    assert PLAIN.inline_bytes_max - ENCRYPTED.inline_bytes_max == OVERHEAD_BYTES
    assert PLAIN.chunk_bytes_max - ENCRYPTED.chunk_bytes_max == OVERHEAD_BYTES


# Encrypted.


def test_no_part_of_an_encrypted_response_can_be_read_in_the_store() -> None:
    body = b"card 4242 " * 20_000
    outcome, chunks = ENCRYPTED.encode_response(ENTRY, 200, [(b"x-card", b"4242")], body)
    small, _ = ENCRYPTED.encode_response(ENTRY, 200, [], b"card 4242")

    for kept in (*chunks, str(outcome.headers).encode(), small.body or b""):
        assert b"4242" not in kept


@pytest.mark.parametrize(
    "other",
    [
        replace(ENTRY, scope="onceward:http:user:bob"),
        replace(ENTRY, key="k2"),
        replace(ENTRY, version=4),
        replace(ENTRY, scope="onceward:http:user:an", key="nk"),
    ],
    ids=["scope", "key", "version", "shifted"],
)
def test_a_response_moved_to_another_entry_does_not_decrypt(other: Entry) -> None:
    small, _ = ENCRYPTED.encode_response(ENTRY, 200, KINDS, b"hers")
    assert small.body is not None
    chunks = ENCRYPTED.encode_chunks(ENTRY, 2, [b"hers"])

    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_body(other, small.body)
    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_settled(replace(other, outcome=small))
    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_chunks(other, 2, chunks)
    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_head(other, ENCRYPTED.encode_head(ENTRY, 200, KINDS))


def test_chunks_in_another_order_do_not_decrypt() -> None:
    one, two = ENCRYPTED.encode_chunks(ENTRY, 2, [b"one", b"two"])

    assert ENCRYPTED.decode_chunks(ENTRY, 2, [one, two]) == [b"one", b"two"]
    for wrong in ([two, one], [one, one], [two]):
        with pytest.raises(OutcomeNotKept):
            ENCRYPTED.decode_chunks(ENTRY, 2, wrong)


def test_a_body_cannot_replace_headers_and_a_chunk_cannot_replace_a_body() -> None:
    outcome, _ = ENCRYPTED.encode_response(ENTRY, 200, KINDS, b"body")
    (chunk,) = ENCRYPTED.encode_chunks(ENTRY, 2, [b"chunk"])

    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_body(ENTRY, chunk)
    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_chunks(ENTRY, 2, [outcome.body or b""])


def test_a_response_stored_without_the_key_or_read_without_it_is_not_kept() -> None:
    before, _ = PLAIN.encode_response(ENTRY, 200, KINDS, b"x" * 100)
    encrypted, _ = ENCRYPTED.encode_response(ENTRY, 200, KINDS, b"x" * 100)

    for codec, outcome in (
        (ENCRYPTED, before),
        (PLAIN, encrypted),
        (ResponseCodec(frozenset(), Encryption([KEY[::-1]])), encrypted),
    ):
        with pytest.raises(OutcomeNotKept):
            codec.decode_settled(replace(ENTRY, outcome=outcome))


@pytest.mark.parametrize("size", [10, 200_000], ids=["inline", "chunks"])
@pytest.mark.parametrize(
    "change",
    [{"code": 201}, {"code": None}, {"chunks": 1}, {"chunks": 99}, {"headers": None}, {"headers": "[]"}],
    ids=str,
)
def test_status_headers_and_number_of_chunks_cannot_be_changed(size: int, change: dict[str, Any]) -> None:
    outcome, _ = ENCRYPTED.encode_response(ENTRY, 200, KINDS, b"x" * size)

    with pytest.raises(OutcomeNotKept):
        ENCRYPTED.decode_settled(replace(ENTRY, outcome=replace(outcome, **change)))


def test_the_head_of_a_running_response_cannot_be_changed_or_replace_settled_headers() -> None:
    head = ENCRYPTED.encode_head(ENTRY, 200, KINDS)
    text = head.partition(b" ")[2].decode()

    assert ENCRYPTED.decode_head(ENTRY, head) == (200, KINDS)
    for wrong in (b"201" + head[3:], b"x" + head, b"\xff" + head, b"", head[:-9]):
        with pytest.raises(OutcomeNotKept):
            ENCRYPTED.decode_head(ENTRY, wrong)
    for chunks in (0, 1, 5):
        with pytest.raises(OutcomeNotKept):
            ENCRYPTED.decode_settled(replace(ENTRY, outcome=Outcome(200, text, None, chunks)))


# A head too large for a chunk.


@codecs
def test_headers_that_are_too_large_for_a_chunk_are_not_kept(codec: ResponseCodec) -> None:
    lines = [(b"x-long", b"x" * CHUNK_BYTES_MAX)]

    with pytest.raises(OutcomeNotKept, match="too large"):
        codec.encode_head(ENTRY, 200, lines)


# Recovery points.


@codecs
def test_a_recovery_point_is_read_by_later_versions_of_its_entry_only(codec: ResponseCodec) -> None:
    stored = replace(ENTRY, recovery=codec.encode_recovery(ENTRY, '{"batch":"b-1"}'), recovery_seq=1)

    assert codec.decode_recovery(replace(stored, version=9, attempt=2)) == {"batch": "b-1"}
    assert codec.decode_recovery(ENTRY) is None
    if codec is ENCRYPTED:
        assert "b-1" not in stored.recovery  # type: ignore[operator]  # it is not None
        assert isinstance(stored.recovery_point, bytes)
        others = (replace(stored, key="other"), replace(stored, created_at=2), replace(stored, recovery='"plain"'))
        for other in others:
            with pytest.raises(OutcomeNotKept, match="put the key that encrypted it back"):
                codec.decode_recovery(other)
