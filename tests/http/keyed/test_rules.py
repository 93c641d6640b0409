"""Rules of a route: declared beside its handler, filled from the defaults, or found by its path."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import InvalidOption
from onceward.http import Rule, header, idempotent
from onceward.http.keyed.rules import PathRules, rule_on
from onceward.http.webhooks import WebhookRule, stripe

DEFAULT = Rule(
    required=False, on_crash="repeat", lease_seconds=30.0, retain_seconds=86400.0, wait_seconds=0.0, store=True,
    max_body_bytes=10, max_response_bytes=20, digest=False,
)  # fmt: skip


def handler() -> str:
    return "handled"


def fresh() -> Callable[[], str]:
    def handle() -> str:
        return "handled"

    return handle


# A rule that cannot work.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_crash", "retry"),
        ("on_crash", ""),
        ("on_crash", True),
        ("on_crash", []),
        ("lease_seconds", 0),
        ("lease_seconds", -1),
        ("lease_seconds", float("nan")),
        ("lease_seconds", "30"),
        ("retain_seconds", -1),
        ("retain_seconds", float("inf")),
        ("retain_seconds", True),
        ("wait_seconds", -0.1),
        ("wait_seconds", None.__class__),
        ("fields", "order_id"),
        ("fields", b"order_id"),
        ("fields", 5),
        ("fields", ("a", 5)),
        ("fields", ("a", "")),
        ("fields", (["a"],)),
        ("max_body_bytes", -1),
        ("max_body_bytes", 1.5),
        ("max_body_bytes", True),
        ("max_body_bytes", "1"),
        ("max_response_bytes", -1),
        ("required", "yes"),
        ("required", 1),
        ("store", "no"),
        ("digest", 0),
    ],
)
def test_an_invalid_rule_is_refused_by_name(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}

    with pytest.raises(InvalidOption, match=name):
        Rule(**options)


@pytest.mark.parametrize("fields", [("a",), (), ["a"]])
def test_a_rule_uses_a_digest_or_fields_but_not_both(fields: Any) -> None:
    """A retry that adds or drops the header would be another request."""
    with pytest.raises(InvalidOption, match=r"digest=True .*fields="):
        Rule(digest=True, fields=fields)
    Rule(digest=False, fields=fields)


def test_a_digest_replaces_the_comparison_of_a_profile() -> None:
    assert Rule(digest=True, profile="acp").compare is None
    assert Rule(digest=True, profile="acp").scope == "endpoint"


@pytest.mark.parametrize(("compare", "expected"), [("json", "body"), ("body", "body"), ("bytes", "bytes")])
def test_a_digest_of_bytes_is_never_compared_with_a_json_value(compare: str, expected: str) -> None:
    """A retry that adds or drops the header would be another request."""
    assert Rule(digest=True).over(Rule(compare=compare)).compare == expected


def test_fields_may_be_given_as_any_sequence() -> None:
    assert Rule(fields=["a", "b.c"]).fields == ("a", "b.c")  # type: ignore[arg-type]  # as people write it
    assert hash(Rule(fields=["a"])) == hash(Rule(fields=("a",)))  # type: ignore[arg-type]


def test_responses_to_webhooks_are_kept_for_seven_days_whatever_the_middleware_says() -> None:
    assert Rule(webhook=stripe()).over(Rule(retain_seconds=60.0)).retain_seconds == 7 * 24 * 3600
    assert Rule(webhook=stripe(), retain_seconds=60.0).retain_seconds == 60


async def _passes(_head: object, _body: object) -> bool:
    return True


@pytest.mark.parametrize("sender", ["", 3, "two words", "x" * 65])
def test_a_webhook_rule_needs_the_name_of_its_sender(sender: Any) -> None:
    with pytest.raises(InvalidOption, match="sender must be 1 to 64 characters"):
        WebhookRule(sender, header("X-Id"))


@pytest.mark.parametrize("passes", [_passes, lambda: True])
def test_a_webhook_rule_passes_requests_by_a_plain_function(passes: Any) -> None:
    with pytest.raises(InvalidOption, match=r"passes= got .* plain function of the head and the body"):
        WebhookRule("parcels", header("X-Id"), passes)


def test_a_hold_rule_is_not_repeatable() -> None:
    assert Rule().repeatable
    assert Rule(on_crash="repeat").repeatable
    assert not Rule(on_crash="hold").repeatable


# Options that a rule leaves open.


def test_a_rule_without_options_is_the_default() -> None:
    assert Rule().over(DEFAULT) == DEFAULT


@pytest.mark.parametrize(
    "rule",
    [
        Rule(required=True),
        Rule(required=False),
        Rule(store=False),
        Rule(wait_seconds=0.0),
        Rule(retain_seconds=0.0),
        Rule(max_body_bytes=0),
        Rule(fields=()),
        Rule(on_crash="hold", fields=("a",), lease_seconds=1.0, store=False),
    ],
    ids=str,
)
def test_an_explicit_option_overrides_even_if_it_is_false_or_empty(rule: Rule) -> None:
    loud = Rule(
        required=True, on_crash="repeat", lease_seconds=9.0, retain_seconds=9.0, wait_seconds=9.0, fields=("z",),
        store=True, max_body_bytes=9, max_response_bytes=9, digest=False,
    )  # fmt: skip
    found = rule.over(loud)

    for name in Rule.__slots__:
        own = getattr(rule, name)
        assert getattr(found, name) == (getattr(loud, name) if own is None else own)


# Beside the handler.


def test_declaring_a_rule_leaves_the_handler_unchanged() -> None:
    handle = fresh()

    assert idempotent(required=True)(handle) is handle
    assert handle() == "handled"
    assert rule_on(handle) == Rule(required=True)


def test_a_rule_is_found_through_wrappers_with_a_wrapped_attribute() -> None:
    inner = idempotent(on_crash="hold")(fresh())

    class Callee:
        """A wrapper like `functools.singledispatch`: it does not copy attributes and has only `__wrapped__`."""

        def __init__(self, wrapped: object) -> None:
            self.__wrapped__ = wrapped

        def __call__(self) -> None: ...

    @functools.wraps(inner)
    def outer() -> str:
        return inner()

    for wrapped in (
        outer,
        functools.wraps(outer)(lambda: None),
        functools.partial(inner),
        functools.partial(functools.partial(outer)),
        Callee(inner),
        Callee(functools.partial(Callee(inner))),
    ):
        assert rule_on(wrapped) == Rule(on_crash="hold")


def test_the_outermost_rule_wins() -> None:
    inner = idempotent(required=True)(fresh())

    @idempotent(required=False)
    @functools.wraps(inner)
    def outer() -> str:
        return inner()

    assert rule_on(outer) == Rule(required=False)
    assert rule_on(inner) == Rule(required=True)


def test_a_method_has_the_rule_of_its_function() -> None:
    class View:
        @idempotent(required=True)
        def post(self) -> None: ...

    assert rule_on(View().post) == rule_on(View.post) == Rule(required=True)


@pytest.mark.parametrize("thing", [None, handler, functools.partial(handler), object(), 5, "text"])
def test_a_handler_without_a_rule_has_none(thing: object) -> None:
    assert rule_on(thing) is None


def test_a_wrapper_that_wraps_itself_has_no_rule() -> None:
    class Loop:
        @property
        def __wrapped__(self) -> Loop:
            return self

    assert rule_on(Loop()) is None


def test_an_object_that_has_every_attribute_has_no_rule() -> None:
    class Agreeable:
        def __getattr__(self, name: str) -> str:
            return name

    assert rule_on(Agreeable()) is None


# By path.


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("/pay", "/pay", True),
        ("/pay", "/pay/", False),
        ("/pay", "/payments", False),
        ("/pay", "/x/pay", False),
        ("/pay/{id}", "/pay/1", True),
        ("/pay/{id}", "/pay/", False),
        ("/pay/{id}", "/pay/1/2", False),
        ("/pay/{id}/refund", "/pay/1/refund", True),
        ("/pay/{a}-{b}", "/pay/1-2", True),
        ("/pay/{a}-{b}", "/pay/12", False),
        ("/admin/*", "/admin/", True),
        ("/admin/*", "/admin/a/b", True),
        ("/admin/*", "/admin", False),
        ("/*", "/anything", True),
        ("/a.b", "/axb", False),
        ("/a(b)+", "/a(b)+", True),
        ("/a*b", "/a*b", True),
        ("/a*b", "/axxb", False),
        ("/{id}", "/line\nbreak", True),
        ("/*", "/line\nbreak", True),
        ("/{}", "/{}", True),
        ("/{}", "/x", False),
    ],
)
def test_a_pattern_matches_these_paths(pattern: str, path: str, found: bool) -> None:
    rule = Rule(required=True)

    assert PathRules({pattern: rule}).find(path) == (rule if found else None)


def test_the_first_matching_path_wins() -> None:
    rules = PathRules({"/pay/special": Rule(store=False), "/pay/{id}": Rule(required=True), "/*": Rule()})

    assert rules.find("/pay/special") == Rule(store=False)
    assert rules.find("/pay/1") == Rule(required=True)
    assert rules.find("/other") == Rule()
    assert PathRules({}).find("/") is None


def test_whether_some_path_requires_a_key_is_known_in_advance() -> None:
    assert PathRules({"/a": Rule(), "/b": Rule(required=True)}).required
    assert not PathRules({"/a": Rule(required=False)}).required


@given(st.text("/ab{}*.()[]\\+?^$|", max_size=10).map("/".__add__))
def test_every_string_is_a_valid_pattern(pattern: str) -> None:
    rules = PathRules({pattern: Rule()})

    if "{" not in pattern:
        assert rules.find(pattern) is not None
    rules.find("/a")


@pytest.mark.parametrize(
    "rules", [{"pay": Rule()}, {"": Rule()}, {5: Rule()}, {None: Rule()}, {"/pay": True}, {"/a": None}, [], "/"]
)
def test_an_invalid_mapping_of_rules_is_refused(rules: Any) -> None:
    with pytest.raises(InvalidOption, match="rules="):
        PathRules(rules)
