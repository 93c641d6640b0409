"""A response comes back from the ledger as it was, sealed or not, and only from its own place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.core.claim import Entry, Status
from onceward.core.outcome import CHUNK_BYTES_MAX, INLINE_BYTES_MAX, Outcome
from onceward.core.response import Headers
from onceward.errors import OutcomeNotKept
from onceward.http.kept import HEAD_SEQ, Form
from onceward.http.seal import SEAL_BYTES, Seal

KEY = bytes(range(32))
PLAIN = Form(frozenset({b"set-cookie"}))
SEALED = Form(frozenset({b"set-cookie"}), Seal([KEY]))
ENTRY = Entry("onceward:http:user:ann", "k", "f", Status.IN_PROGRESS, 3, 1, "w", "h", True, 1, None, 1)
KINDS: Headers = ((b"content-type", b"text/plain"), (b"X-Twice", b"1"), (b"X-Twice", b"2"))

forms = pytest.mark.parametrize("form", [PLAIN, SEALED], ids=["plain", "sealed"])
headers = st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4).map(tuple)


def read(form: Form, entry: Entry, outcome: Outcome, chunks: tuple[bytes, ...]) -> tuple[int | None, Headers, bytes]:
    """What a retry is answered with."""
    status, lines = form.read_settled(replace(entry, outcome=outcome))
    if outcome.body is not None:
        return status, lines, form.read_inline(entry, outcome.body)
    assert outcome.chunks == len(chunks)
    assert (status, lines) == form.read_head(entry, chunks[0])
    return status, lines, b"".join(form.read_chunks(entry, HEAD_SEQ + 1, chunks[1:]))


@forms
@given(status=st.integers(200, 499), lines=headers, body=st.binary(max_size=200))
def test_a_response_comes_back_as_it_was(form: Form, status: int, lines: Headers, body: bytes) -> None:
    outcome, chunks = form.whole(ENTRY, status, lines, body)

    kept = tuple(line for line in lines if line[0].lower() != b"set-cookie")
    assert read(form, ENTRY, outcome, chunks) == (status, kept, body)


@forms
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_body_lies_with_its_entry_up_to_64_kib_and_in_chunks_above(form: Form, over: int) -> None:
    body = b"x" * (form.inline_bytes_max + over)

    outcome, chunks = form.whole(ENTRY, 200, KINDS, body)

    assert (outcome.body is None) == (over > 0) == bool(chunks)
    assert outcome.body is None or len(outcome.body) <= INLINE_BYTES_MAX
    assert read(form, ENTRY, outcome, chunks) == (200, KINDS, body)


@forms
def test_a_large_body_comes_back_whole_from_chunks_that_the_ledger_takes(form: Form) -> None:
    body = bytes(range(256)) * 1200

    outcome, chunks = form.whole(ENTRY, 201, KINDS, body)

    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX
    assert len(chunks) == outcome.chunks > 4
    assert read(form, ENTRY, outcome, chunks) == (201, KINDS, body)


@forms
def test_an_empty_body_is_kept_and_is_not_nothing(form: Form) -> None:
    outcome, chunks = form.whole(ENTRY, 204, (), b"")

    assert outcome.kept
    assert read(form, ENTRY, outcome, chunks) == (204, (), b"")


@forms
@given(st.lists(st.binary(max_size=30), max_size=5), st.integers(2, 50))
def test_a_stream_comes_back_in_its_own_pieces(form: Form, pieces: list[bytes], seq: int) -> None:
    assert form.read_chunks(ENTRY, seq, form.chunks(ENTRY, seq, pieces)) == pieces


@forms
def test_headers_are_denied_in_any_spelling(form: Form) -> None:
    outcome, _ = form.whole(ENTRY, 200, [(b"Set-Cookie", b"session=secret"), (b"X-A", b"1")], b"")

    assert form.read_settled(replace(ENTRY, outcome=outcome)) == (200, ((b"X-A", b"1"),))


def test_the_seal_takes_its_room_from_the_body() -> None:
    assert PLAIN.inline_bytes_max - SEALED.inline_bytes_max == SEAL_BYTES
    assert PLAIN.chunk_bytes_max - SEALED.chunk_bytes_max == SEAL_BYTES


# Sealed.


def test_nothing_of_a_sealed_response_can_be_read_in_the_store() -> None:
    body = b"card 4242 " * 20_000
    outcome, chunks = SEALED.whole(ENTRY, 200, [(b"x-card", b"4242")], body)
    small, _ = SEALED.whole(ENTRY, 200, [], b"card 4242")

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
def test_what_was_moved_to_another_entry_does_not_open(other: Entry) -> None:
    small, _ = SEALED.whole(ENTRY, 200, KINDS, b"hers")
    assert small.body is not None
    chunks = SEALED.chunks(ENTRY, 2, [b"hers"])

    with pytest.raises(OutcomeNotKept):
        SEALED.read_inline(other, small.body)
    with pytest.raises(OutcomeNotKept):
        SEALED.read_settled(replace(other, outcome=small))
    with pytest.raises(OutcomeNotKept):
        SEALED.read_chunks(other, 2, chunks)
    with pytest.raises(OutcomeNotKept):
        SEALED.read_head(other, SEALED.head(ENTRY, 200, KINDS))


def test_chunks_in_another_order_do_not_open() -> None:
    one, two = SEALED.chunks(ENTRY, 2, [b"one", b"two"])

    assert SEALED.read_chunks(ENTRY, 2, [one, two]) == [b"one", b"two"]
    for wrong in ([two, one], [one, one], [two]):
        with pytest.raises(OutcomeNotKept):
            SEALED.read_chunks(ENTRY, 2, wrong)


def test_a_body_cannot_stand_for_headers_nor_a_chunk_for_a_body() -> None:
    outcome, _ = SEALED.whole(ENTRY, 200, KINDS, b"body")
    (chunk,) = SEALED.chunks(ENTRY, 2, [b"chunk"])

    with pytest.raises(OutcomeNotKept):
        SEALED.read_inline(ENTRY, chunk)
    with pytest.raises(OutcomeNotKept):
        SEALED.read_chunks(ENTRY, 2, [outcome.body or b""])


def test_what_was_kept_before_sealing_or_is_read_without_the_key_is_not_taken_for_a_response() -> None:
    before, _ = PLAIN.whole(ENTRY, 200, KINDS, b"x" * 100)
    sealed, _ = SEALED.whole(ENTRY, 200, KINDS, b"x" * 100)

    for form, outcome in ((SEALED, before), (PLAIN, sealed), (Form(frozenset(), Seal([KEY[::-1]])), sealed)):
        with pytest.raises(OutcomeNotKept):
            form.read_settled(replace(ENTRY, outcome=outcome))


@pytest.mark.parametrize("size", [10, 200_000], ids=["inline", "chunks"])
@pytest.mark.parametrize(
    "change",
    [{"code": 201}, {"code": None}, {"chunks": 1}, {"chunks": 99}, {"headers": None}, {"headers": "[]"}],
    ids=str,
)
def test_neither_status_nor_headers_nor_number_of_chunks_can_be_changed(size: int, change: dict[str, Any]) -> None:
    outcome, _ = SEALED.whole(ENTRY, 200, KINDS, b"x" * size)

    with pytest.raises(OutcomeNotKept):
        SEALED.read_settled(replace(ENTRY, outcome=replace(outcome, **change)))


def test_the_head_of_a_running_response_cannot_be_changed_nor_stand_for_settled_headers() -> None:
    head = SEALED.head(ENTRY, 200, KINDS)
    text = head.partition(b" ")[2].decode()

    assert SEALED.read_head(ENTRY, head) == (200, KINDS)
    for wrong in (b"201" + head[3:], b"x" + head, b"\xff" + head, b"", head[:-9]):
        with pytest.raises(OutcomeNotKept):
            SEALED.read_head(ENTRY, wrong)
    for chunks in (0, 1, 5):
        with pytest.raises(OutcomeNotKept):
            SEALED.read_settled(replace(ENTRY, outcome=Outcome(200, text, None, chunks)))


# A head too large for a chunk.


@forms
def test_headers_that_no_chunk_holds_say_so(form: Form) -> None:
    lines = [(b"x-long", b"x" * CHUNK_BYTES_MAX)]

    with pytest.raises(OutcomeNotKept, match="too large"):
        form.head(ENTRY, 200, lines)
