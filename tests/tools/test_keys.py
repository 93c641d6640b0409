"""The keys of all layers, and the scopes that keep them apart."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

import pytest
import rfc8785
from hypothesis import assume, given
from hypothesis import strategies as st

from onceward.core.key import SCOPE_BYTES_MAX
from onceward.errors import InvalidKey, InvalidOption
from onceward.tools.keys import (
    api_key,
    beat_key,
    build_tool_idempotency_key,
    content_key,
    extract_business_key,
    message_hash,
    scope_of,
    tool_key,
)

FIRST = "00000000-0000-0000-0000-000000000001"
SECOND = "00000000-0000-0000-0000-000000000002"


@dataclass(frozen=True)
class Turn:
    turn_group_id: object = "XYZ"


def test_a_beat_key_has_tenant_session_and_a_hash_of_the_sorted_ids() -> None:
    assert beat_key("acme", "acme:bot:ann:web", [FIRST, SECOND]) == "acme:beat:acme:bot:ann:web:4899549e45f8be78"


def test_the_order_in_which_messages_arrive_does_not_matter() -> None:
    assert message_hash([uuid.UUID(SECOND), uuid.UUID(FIRST)]) == message_hash([FIRST, SECOND]) == "4899549e45f8be78"


def test_both_signatures_of_the_contract_give_one_key() -> None:
    by_business_key = build_tool_idempotency_key("refund", "order:12345", Turn())
    by_arguments = build_tool_idempotency_key("refund", {"order_id": "12345"}, Turn(), template="order:{order_id}")
    by_names = build_tool_idempotency_key(
        "refund", tool_args={"order_id": "12345"}, logical_turn=Turn(), template="order:{order_id}"
    )

    assert by_business_key == by_arguments == by_names == "refund:order:12345:turn_group:XYZ"


def test_key_fields_are_joined_by_colons() -> None:
    assert extract_business_key("book", {"hotel": "Ritz", "night": 3, "note": "x"}, ["hotel", "night"]) == "Ritz:3"


def test_separators_inside_a_value_are_escaped() -> None:
    assert extract_business_key("refund", {"order": "a:b%c"}, ["order"]) == "a%3Ab%25c"


def test_a_number_has_one_spelling() -> None:
    spelled = {extract_business_key("refund", {"order": value}, ["order"]) for value in (12345, 12345.0, "12345")}

    assert spelled == {"12345"}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"order_id": None}, {"order_id": True}, {"order_id": ["1"]}, {"order_id": float("nan")}],
    ids=["missing", "null", "a truth", "a list", "not a number"],
)
@pytest.mark.parametrize(
    "named", [{"key_fields": ["order_id"]}, {"template": "order:{order_id}"}], ids=["fields", "template"]
)
def test_a_key_field_without_a_usable_value_is_refused(arguments: dict[str, object], named: dict[str, object]) -> None:
    with pytest.raises(InvalidKey, match=r"order_id|NaN|nan"):
        extract_business_key("refund", arguments, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key_fields", "template"),
    [("order_id", None), (["a.b"], None), ([""], None), (["a"], "{a}"), ((), "order"), ((), "{a}{b}")],
    ids=["a text", "a path", "no name", "both", "no field", "nothing between"],
)
def test_a_declaration_that_cannot_tell_calls_apart_is_refused(key_fields: list[str], template: str | None) -> None:
    with pytest.raises(InvalidKey):
        extract_business_key("refund", {"a": "1", "b": "2", "order_id": "3"}, key_fields, template)


_fields = st.lists(st.text("a:%3A", max_size=3) | st.text(), min_size=1, max_size=4)


@given(_fields, _fields)
def test_two_calls_with_different_fields_never_share_a_business_key(one: list[str], other: list[str]) -> None:
    assume(one != other and len(one) == len(other))
    fields = [f"field{number}" for number in range(len(one))]
    try:
        keys = {extract_business_key("tool", dict(zip(fields, values, strict=True)), fields) for values in (one, other)}
    except InvalidKey:
        return  # empty as a whole, half a character, NUL, or longer than a key may be

    assert len(keys) == 2


@given(st.tuples(st.text("ab%:-", max_size=4), st.text("ab%:-", max_size=4)), st.data())
def test_two_calls_with_different_fields_never_share_a_templated_key(one: tuple[str, str], data: st.DataObject) -> None:
    other = data.draw(st.tuples(st.text("ab%:-", max_size=4), st.text("ab%:-", max_size=4)))
    assume(one != other)

    keys = {extract_business_key("t", {"a": a, "b": b}, template="x:{a}-{b}") for a, b in (one, other)}

    assert len(keys) == 2


def test_without_fields_the_key_is_a_hash_of_the_canonical_arguments() -> None:
    arguments = {"b": 1.0, "a": ["ü", None], "$": {}}
    expected = hashlib.sha256(rfc8785.dumps(arguments)).hexdigest()[:16]  # type: ignore[arg-type]

    assert extract_business_key("note", arguments) == expected
    assert extract_business_key("note", {"$": {}, "a": ["ü", None], "b": 1}) == expected


def test_numbers_that_have_no_canonical_form_still_tell_calls_apart() -> None:
    large = 2**53 + 1
    tagged = {"$": "int", "v": hex(large)}

    assert len({extract_business_key("t", {"n": value}) for value in (large, large + 1, tagged)}) == 3


@pytest.mark.parametrize("group", ["", "a\nb", "a\0b"], ids=["empty", "line", "nul"])
def test_a_group_without_a_name_is_refused(group: str) -> None:
    with pytest.raises(InvalidOption):
        tool_key("refund", "1", group)


def test_the_key_of_a_client_belongs_to_its_tenant() -> None:
    assert api_key("acme", "abc") == "acme:abc"


def test_a_message_without_a_key_is_identified_by_its_words_sender_and_session() -> None:
    key = content_key("acme", "ann", "s", ["b", "a"])

    assert len(key) == 32
    assert key == content_key("acme", "ann", "s", ["a", "b"])
    others = {
        content_key("other", "ann", "s", ["a", "b"]),
        content_key("acme", "bob", "s", ["a", "b"]),
        content_key("acme", "ann", "t", ["a", "b"]),
        content_key("acme", "ann", "s", ["ab"]),
    }
    assert len(others | {key}) == 5


_names = st.one_of(
    st.text("a:%", max_size=2),
    st.text(max_size=3),
    st.sampled_from(["a:b", "a%3Ab", "sha256:" + "0" * 64, "x" * 300, "\ud800"]),
)


@given(st.tuples(st.sampled_from(["tool", "beat"]), _names, _names), st.data())
def test_different_layers_tenants_and_principals_never_share_a_scope(
    one: tuple[str, str, str], data: st.DataObject
) -> None:
    other = data.draw(st.tuples(st.sampled_from(["tool", "beat"]), _names, _names))
    assume(one != other)

    assert scope_of(*one) != scope_of(*other)


def test_separators_inside_a_name_are_escaped() -> None:
    assert scope_of("tool", "a", "b:c") != scope_of("tool", "c:a", "b")


@given(_names, _names)
def test_a_scope_leaves_room_for_the_namespace(principal: str, tenant: str) -> None:
    one = ("delivery", principal, tenant)

    assert len(scope_of(*one).encode()) <= SCOPE_BYTES_MAX - 65
