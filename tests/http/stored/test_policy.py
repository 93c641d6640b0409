"""The stored parts of a response, and their text form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import OutcomeNotKept
from onceward.http.stored.policy import (
    DENY_HEADERS,
    RETRIABLE_STATUSES,
    Headers,
    head_from_chunk,
    head_to_chunk,
    headers_from_text,
    headers_to_text,
    keeps_status,
    keeps_success,
)

NONE: frozenset[bytes] = frozenset()
DENY = frozenset(name.encode() for name in DENY_HEADERS)

headers = st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=20)), max_size=6).map(tuple)


def test_these_statuses_are_outcomes() -> None:
    kept = {status for status in range(100, 600) if keeps_status(status)}

    assert kept == set(range(200, 500)) - {401, 403, 408, 409, 425, 429}


def test_only_a_success_is_an_outcome_of_a_webhook() -> None:
    assert {status for status in range(100, 600) if keeps_success(status)} == set(range(200, 300))


@pytest.mark.parametrize("status", sorted(RETRIABLE_STATUSES | {100, 199, 500, 502, 503, 599}))
def test_temporary_and_unauthorized_statuses_are_not_outcomes(status: int) -> None:
    assert not keeps_status(status)


@pytest.mark.parametrize(
    "name", ["Set-Cookie", "set-cookie", "DATE", "Server", "Transfer-Encoding", "X-Request-ID", "Idempotent-Replayed"]
)
def test_per_exchange_headers_are_not_stored_in_any_spelling(name: str) -> None:
    lines = [(b"Content-Type", b"text/plain"), (name.encode(), b"x"), (b"X-Total", b"3")]

    kept = headers_from_text(headers_to_text(tuple(lines), DENY))

    assert kept == ((b"Content-Type", b"text/plain"), (b"X-Total", b"3"))


def test_the_deny_list_is_lower_case() -> None:
    assert {name.lower() for name in DENY_HEADERS} == DENY_HEADERS


@given(headers)
def test_headers_keep_their_order_spelling_and_repetition(lines: Headers) -> None:
    assert headers_from_text(headers_to_text(lines, NONE)) == lines


@given(headers)
def test_headers_are_stored_as_json_that_an_operator_can_read(lines: Headers) -> None:
    text = headers_to_text(lines, NONE)

    assert text.isascii()
    assert [tuple(pair) for pair in json.loads(text)] == [(n.decode("latin-1"), v.decode("latin-1")) for n, v in lines]


def test_missing_or_empty_headers_read_as_an_empty_tuple() -> None:
    assert headers_from_text(None) == headers_from_text("[]") == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "1", "null", "[1]", "[[1, 2]]", '[["a"]]', '[["a", "b", "c"]]', '[["a", "\u20ac"]]', "sealed:AAAA"],
)
def test_unreadable_headers_raise_outcome_not_kept(text: str) -> None:
    with pytest.raises(OutcomeNotKept, match="headers"):
        headers_from_text(text)


@given(st.integers(100, 599), headers)
def test_the_head_of_a_recorded_body_comes_back(status: int, lines: Headers) -> None:
    text = headers_to_text(lines, NONE)

    assert head_from_chunk(head_to_chunk(status, text)) == (status, text)
