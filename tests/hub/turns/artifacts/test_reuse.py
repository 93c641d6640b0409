"""Declarations of artifact reuse: which are valid, and the rules that they give."""

from __future__ import annotations

from typing import Any

import pytest
from tests.hub.turns.artifacts.test_artifacts import DECLARED

from onceward.errors import InvalidOption
from onceward.hub.turns.artifacts.reuse import reuse_rules


@pytest.mark.parametrize(
    "declared",
    [
        {"a": {}},
        {"a": "same_input"},
        {"a": {"scope": "sometimes"}},
        {"a": {"scope": "never", "until": 5}},
        {"a": {"scope": "never", "requires_revalidate": "yes"}},
        {"a": {"scope": "never", "revalidate": 5}},
        {"a": {"scope": "never", "ttl_seconds": 0}},
        {"tool_results": {"scope": "same_input"}},
    ],
    ids=["no scope", "no object", "scope", "unknown", "must", "hook", "ttl", "tool results"],
)
def test_an_invalid_declaration_is_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        reuse_rules(declared)


def test_the_declaration_of_the_contract_is_valid() -> None:
    rules = reuse_rules({**DECLARED, "tool_results": {"scope": "never"}})

    assert rules["tool_plan"].requires_revalidate
    assert rules["parsing"].ttl_seconds == 24 * 3600
