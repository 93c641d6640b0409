"""Profiles are presets: explicit options win over them, and a route wins over its middleware."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from onceward.errors import InvalidOption
from onceward.http import Rule, acp_error, header, json_field, problem_json, query, ucp_error
from onceward.http.keyed.admission import Admission
from onceward.http.keyed.options import MiddlewareOptions
from onceward.http.keyed.profiles import PROFILES
from onceward.http.webhooks import stripe
from onceward.store.memory import MemoryStore


def admission(**options: Any) -> Admission:
    return Admission(MemoryStore(), {"metrics": False, **options})  # type: ignore[typeddict-item]  # as a caller may


def rule_of(rule: Rule | None = None, **options: Any) -> Rule:
    made = admission(**options)
    with closing(made.ledger):
        return made.rule(rule, "/pay")


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_only_sets_options_that_can_be_given_one_by_one(name: str) -> None:
    assert set(PROFILES[name]) <= set(MiddlewareOptions.__annotations__)

    assert rule_of(**PROFILES[name]) == rule_of(profile=name)
    assert admission(profile=name).methods == admission(**PROFILES[name]).methods


def test_an_explicit_option_wins_over_the_profile() -> None:
    rule = rule_of(profile="acp", compare="bytes", echo=False, required=False, retain_seconds=60.0)

    assert (rule.compare, rule.echo, rule.required, rule.retain_seconds) == ("bytes", False, False, 60.0)
    assert (rule.scope, rule.problem) == ("endpoint", acp_error)


def test_a_route_wins_over_the_middleware() -> None:
    rule = rule_of(Rule(compare="json", echo=False, key=query("id")), profile="ucp", echo=True, key=header("A"))

    assert (rule.compare, rule.echo, rule.source) == ("json", False, query("id"))
    assert rule.problem == ucp_error


def test_the_profile_of_a_route_wins_over_the_options_of_the_middleware() -> None:
    rule = rule_of(Rule(profile="acp", scope="principal"), compare="body", scope="endpoint", problem="problem_json")

    assert (rule.compare, rule.scope, rule.problem) == ("json", "principal", acp_error)


def test_chosen_fields_replace_the_comparison_of_a_profile() -> None:
    assert rule_of(Rule(profile="acp", fields=("id",))).compare == "bytes"


def test_a_format_is_given_by_name_or_as_a_function() -> None:
    assert rule_of(problem="acp_error") == rule_of(problem=acp_error)
    assert rule_of(problem="problem_json").problem is problem_json


@pytest.mark.parametrize(
    "options",
    [
        {"profile": "soap"},
        {"profile": 1},
        {"compare": "xml"},
        {"scope": "everyone"},
        {"after_retention": "wait"},
        {"problem": "xml_error"},
        {"problem": 3},
        {"echo": "yes"},
        {"max_keys_per_principal": 0},
        {"max_keys_per_principal": True},
        {"max_keys_per_principal": 1.5},
        {"key": "Webhook-Id"},
    ],
)
def test_a_wrong_value_is_refused_on_the_middleware_and_on_a_route(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        admission(**options)
    with pytest.raises(InvalidOption):
        Rule(**options)


@pytest.mark.parametrize("key", [json_field("id"), lambda _head, _body: "k"])
def test_a_middleware_refuses_a_key_that_needs_the_body(key: Any) -> None:
    with pytest.raises(InvalidOption, match="declare it on the route"):
        admission(key=key)
    assert rule_of(Rule(key=key)).source is not None


@pytest.mark.parametrize(
    "options",
    [
        {"fields": ("a",), "compare": "json"},
        {"digest": True, "compare": "json"},
        {"digest": True, "key": json_field("id")},
        {"webhook": stripe(), "key": header("A")},
        {"webhook": stripe(), "compare": "json"},
        {"webhook": stripe(), "profile": "acp"},
        {"webhook": "stripe"},
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Rule(**options)


@pytest.mark.parametrize(("profile", "hours"), [("acp", 24), ("ucp", 48), ("stripe", 24)])
def test_a_profile_keeps_a_response_as_long_as_its_standard_recommends(profile: str, hours: int) -> None:
    assert PROFILES[profile]["retain_seconds"] == hours * 3600
