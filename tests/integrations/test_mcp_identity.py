"""The identity of a call: which keys are found, and which arguments remain. `test_mcp.py` has the rest."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import InvalidInput
from onceward.integrations.mcp_identity import CallIdentity, Request, extract_key, may_have_key


@pytest.mark.parametrize(
    ("arguments", "meta"),
    [
        ({}, {"idempotency_key": "k"}),
        ({"meta": {"idempotency-key": "k"}}, {}),
        ({"meta": {"idempotency_key": "k"}}, {}),
        ({"idempotency_key": "k"}, {}),
        ({"idempotency_key": "k", "meta": {"idempotency-key": "k", "idempotency_key": "k"}}, {"idempotency_key": "k"}),
    ],
    ids=["_meta", "meta with a hyphen", "meta", "an argument", "all of them"],
)
def test_a_key_is_found_and_removed_from_the_arguments(arguments: dict[str, Any], meta: dict[str, Any]) -> None:
    given = {"order_id": "1", **arguments}

    assert extract_key({"order_id", "amount"}, given, meta) == ("k", {"order_id": "1"})


def test_other_fields_of_meta_stay() -> None:
    given = {"meta": {"idempotency-key": "k", "agent": "a"}}

    assert extract_key({"order_id", "amount"}, given, {}) == ("k", {"meta": {"agent": "a"}})
    assert extract_key({"order_id", "amount"}, {"meta": {"agent": "a"}}, {}) == (None, {"meta": {"agent": "a"}})


def test_a_key_argument_that_the_tool_declares_is_left_to_it() -> None:
    given = {"amount": 1, "meta": {"idempotency-key": "k"}, "idempotency_key": "k"}

    assert extract_key({"amount", "meta", "idempotency_key"}, given, {}) == ("k", given)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, False),
        ({"order_id": "1", "meta": {"agent": "a"}}, False),
        ({"meta": "idempotency_key"}, False),
        ({"meta": {"idempotency-key": "k"}}, True),
        ({"idempotency_key": None}, True),
    ],
    ids=str,
)
def test_the_schema_of_a_tool_matters_only_if_the_arguments_have_a_key(
    arguments: dict[str, Any], expected: bool
) -> None:
    assert may_have_key(arguments) is expected


@pytest.mark.parametrize("needs_group", [True, False])
def test_only_a_tool_whose_effects_belong_to_a_group_is_remembered_for_a_shorter_time(needs_group: bool) -> None:
    identity: CallIdentity[None] = CallIdentity(inferred_seconds=60)

    found = identity.call_options(
        {"order_id": "1"}, Request(meta={}), None, declared=(), needs_group=needs_group, retain_seconds=3600
    )

    assert found["turn_group_id"] == found["principal"] == "local"
    assert found.get("retain_seconds") == (60 if needs_group else None)


def test_a_tool_whose_effects_belong_to_no_group_needs_none() -> None:
    identity: CallIdentity[None] = CallIdentity(require_group=True)
    call = {"declared": (), "retain_seconds": 60.0}

    assert identity.call_options({}, Request(meta={}), None, needs_group=False, **call)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="turn_group_id"):
        identity.call_options({}, Request(meta={}), None, needs_group=True, **call)  # type: ignore[arg-type]
