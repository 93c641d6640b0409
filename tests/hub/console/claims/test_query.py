"""The filter bar."""

from __future__ import annotations

import dataclasses

import pytest

from onceward.core.claim import Entry, Status
from onceward.errors import InvalidInput
from onceward.hub.console.claims.query import ClaimQuery, parse_query, term

ENTRY = Entry(
    "shop:http:user:ada", "pay-17", "fp", Status.IN_DOUBT, 3, 1, "w", "h", False, 0, None, 0,
    user_id="ada", endpoint="POST /pay", note="the bank timed out",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", ClaimQuery()),
        ("key:pay-17 status:in_doubt", ClaimQuery(key="pay-17", status="in_doubt")),
        ('endpoint:"POST /pay" user:ada', ClaimQuery(endpoint="POST /pay", user="ada")),
        ("Timeout key:order:17:x", ClaimQuery(key="order:17:x", words=("timeout",))),
        ("order:17", ClaimQuery(words=("order:17",))),
        ('"two words"', ClaimQuery(words=("two words",))),
        ('key:"unfinished', ClaimQuery(key="unfinished")),
    ],
)
def test_a_filter_is_parsed(text: str, query: ClaimQuery) -> None:
    assert parse_query(text) == query


@pytest.mark.parametrize("text", ["status:lost", "key:", "x" * 1001])
def test_a_filter_that_is_not_valid_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_query(text)

    assert refused.value.fields[0][0] == "q"


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("key:pay-17", True), ("key:pay-1", False), ("key:pay-*", True), ("scope:http:*", True), ("scope:http", False),
        ("status:in_doubt", True), ("status:failed", False), ("endpoint:/PAY", True), ("endpoint:/refund", False),
        ("user:ada", True), ("user:ad", False), ("bank TIMED", True), ("bank journal", False),
    ],
)  # fmt: skip
def test_an_entry_matches_if_every_field_does(text: str, matches: bool) -> None:
    assert parse_query(text).matches(ENTRY, "shop", 1) is matches


def test_an_entry_without_an_endpoint_is_found_by_the_tool_in_its_key() -> None:
    tool = dataclasses.replace(ENTRY, endpoint="", key="refund:order:1:turn_group:g")

    assert parse_query("endpoint:refund").matches(tool, "shop", 1)


def test_a_term_with_spaces_is_quoted_and_read_back() -> None:
    assert parse_query(term("endpoint", "POST /pay")).endpoint == "POST /pay"
