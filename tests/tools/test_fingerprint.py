"""Fingerprints of the input and the dependencies of a turn, and of a call."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest
import rfc8785

from onceward.errors import InvalidOption
from onceward.tools.fingerprint import beat_fp, call_fp, dep_fp, input_fp, is_volatile


def sha(parts: Any) -> str:
    return hashlib.sha256(rfc8785.dumps(parts)).hexdigest()


VERSIONS = {
    "scenario_set_version": "s1",
    "rules_version": 2,
    "kb_version": "k3",
    "agent_config_version": "a4",
    "tool_registry_version": "t5",
}


def test_the_input_is_hashed_in_the_order_of_the_contract() -> None:
    found = input_fp("acme", "bot", "session", "web", ["Refund my order", "Order #12345"])

    assert found == sha(["acme", "bot", "session", "web", ["Refund my order", "Order #12345"]])


def test_the_order_of_messages_is_part_of_the_input() -> None:
    assert input_fp("a", "b", "s", "c", ["one", "two"]) != input_fp("a", "b", "s", "c", ["two", "one"])


def test_metadata_is_hashed_after_the_parts_of_the_contract() -> None:
    def found(*metadata: dict[str, Any], names: Any = None) -> str:
        return input_fp("a", "b", "s", "c", ["one", "two"], metadata, meaningful_metadata=names)

    plain = ["a", "b", "s", "c", ["one", "two"]]
    volatile = {"timestamp": 1, "trace_id": "t", "request_id": "r"}
    assert found() == found({}, volatile) == found({"x": 1}, {}, names=()) == sha(plain)
    assert found({"x": 1, **volatile}, {}) == sha([*plain, [{"x": 1}, {}]])
    assert found({"x": 1, **volatile}, {}, names=["trace_id"]) == sha([*plain, [{"trace_id": "t"}, {}]])
    with pytest.raises(InvalidOption, match="one mapping for each message, got 1 for 2 messages"):
        found({})


def test_unicode_composition_and_surrounding_whitespace_of_a_message_do_not_matter() -> None:
    assert input_fp("a", "b", "s", "c", [" cafe\u0301\n"]) == input_fp("a", "b", "s", "c", ["caf\u00e9"])


def test_the_dependencies_are_hashed_in_the_order_of_the_contract() -> None:
    assert dep_fp(dict(reversed(VERSIONS.items()))) == sha(["s1", 2, "k3", "a4", "t5"])


def test_a_missing_dependency_counts_as_null() -> None:
    assert dep_fp({"kb_version": "k3"}) == sha([None, None, "k3", None, None])


@pytest.mark.parametrize("name", VERSIONS)
def test_every_dependency_counts(name: str) -> None:
    assert dep_fp({**VERSIONS, name: "other"}) != dep_fp(VERSIONS)


def test_additional_dependencies_count_too() -> None:
    assert len({dep_fp({**VERSIONS, **more}) for more in ({}, {"model": "x"}, {"model": "y"})}) == 3


def test_a_version_without_a_unique_text_is_refused() -> None:
    with pytest.raises(InvalidOption, match="kb_version"):
        dep_fp({"kb_version": object()})


def test_a_beat_has_the_same_fingerprint_in_any_order_of_messages() -> None:
    assert beat_fp([("2", "b"), ("1", "a")]) == beat_fp([("1", "a"), ("2", "b")])
    assert beat_fp([("1", "a"), ("2", "b")]) != beat_fp([("1", "b"), ("2", "a")])


@pytest.mark.parametrize(
    "text",
    [
        str(uuid.UUID(int=7)),
        "{6BA7B810-9DAD-11D1-80B4-00C04FD430C8}",
        "urn:uuid:6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "2026-02-17T10:00:00Z",
        "2026-02-17t10:00:00.123456+01:00",
        "2026-02-17 10:00",
    ],
)
def test_random_ids_and_current_times_are_recognised_as_volatile(text: str) -> None:
    assert is_volatile(text)


@pytest.mark.parametrize(
    "value",
    ["", "12345", "2026-02-17", "2026-13-17T10:00:00Z", "order 6ba7b810-9dad-11d1-80b4-00c04fd430c8", 1760000000, None],
    ids=repr,
)
def test_meaningful_values_are_not_taken_for_volatile(value: object) -> None:
    assert not is_volatile(value)


def test_volatile_parts_are_left_out_at_any_depth() -> None:
    one, other = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))

    def seen(drawn: str) -> dict[str, object]:
        arguments = {
            "id": "x",
            "trace": drawn,
            "meta": {"at": drawn, "why": "y"},
            "list": [drawn, 1],
            "keep": {"at": drawn},
        }
        return call_fp(arguments, left_out={"id"}, exact={"keep"})

    assert seen(one) == {"meta": {"why": "y"}, "list": [None, 1], "keep": {"at": one}}
    assert {**seen(one), "keep": ""} == {**seen(other), "keep": ""}
