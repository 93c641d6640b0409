"""Options of the middleware: their meaning, and the refusal of invalid ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from onceward.errors import InvalidKey, InvalidOption, InvalidStoreUrl
from onceward.http import IdempotencyMiddleware, Rule, WSGIIdempotencyMiddleware
from onceward.http.keyed.admission import Admission
from onceward.http.keyed.options import MiddlewareOptions
from onceward.http.stored.policy import keeps_status
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore

KEY = bytes(32)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(MemoryStore(), lease_seconds=7, retain_seconds=8) as ledger:
        yield ledger


def admission(**options: Any) -> Admission:
    return Admission(MemoryStore(), options)  # type: ignore[arg-type]  # right and wrong ones


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lease_seconds", 0),
        ("lease_seconds", -1),
        ("lease_seconds", "300"),
        ("retain_seconds", -1),
        ("retain_seconds", float("inf")),
        ("wait_seconds", -1),
        ("wait_seconds", "no"),
        ("principal", "ann"),
        ("variant", "shop"),
        ("session_cookies", "sid"),
        ("session_cookies", [""]),
        ("session_cookies", [b"sid"]),
        ("session_cookies", ["s id"]),
        ("session_cookies", ["sid="]),
        ("session_cookies", 5),
        ("on_crash", "retry"),
        ("on_crash", []),
        ("methods", "POST"),
        ("methods", [b"POST"]),
        ("methods", 5),
        ("paths", "/api/"),
        ("paths", [5]),
        ("paths", ["api/"]),
        ("paths", [""]),
        ("required", "yes"),
        ("rules", [Rule()]),
        ("rules", {"pay": Rule()}),
        ("rules", {"/pay": {"required": True}}),
        ("max_body_bytes", -1),
        ("max_body_bytes", 1e6),
        ("max_response_bytes", "16MB"),
        ("max_stream_seconds", -1),
        ("max_stream_seconds", float("nan")),
        ("deny_headers", "Set-Cookie"),
        ("deny_headers", [b"set-cookie"]),
        ("deny_headers", ["größe\u20ac"]),
        ("keep_status", 200),
        ("on_store_error", "ignore"),
        ("on_store_error", ["fail"]),
        ("store_seconds", -1),
        ("store_seconds", "5"),
        ("purge_seconds", -1),
        ("purge_seconds", True),
        ("encryption_keys", KEY),
        ("encryption_keys", b""),
        ("encryption_keys", ""),
        ("encryption_keys", [b"short"]),
        ("encryption_keys", [None]),
        ("metrics", "yes"),
        ("enabled", "no"),
        ("enabled", 0),
        ("reqired", True),
    ],
)
def test_an_invalid_option_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=name):
        admission(**{name: value})


@pytest.mark.parametrize("namespace", ["", "n" * 65, "a:b", 5])
def test_an_invalid_namespace_is_refused_as_by_a_ledger(namespace: object) -> None:
    with pytest.raises(InvalidKey, match="namespace"):
        admission(namespace=namespace)


@pytest.mark.parametrize("middleware", [IdempotencyMiddleware, WSGIIdempotencyMiddleware])
def test_both_middlewares_refuse_the_same_options(middleware: Any) -> None:
    with pytest.raises(InvalidOption, match="unknown option 'lease'; the options are lease_seconds"):
        middleware(print, store="memory:", lease=5)
    with pytest.raises(InvalidOption, match="store= must be a URL, a store or a ledger, got 5"):
        middleware(print, store=5)
    with pytest.raises(InvalidStoreUrl):
        middleware(print, store="mongodb://nowhere")


def test_a_refused_option_leaves_no_store_open() -> None:
    """The store is opened after all options were checked."""
    with pytest.raises(InvalidOption, match="purge_seconds"):
        Admission("nowhere://", {"purge_seconds": -1})


def test_the_defaults_are_the_documented_ones() -> None:
    plain = admission()

    assert plain.default == Rule(
        required=False, on_crash="repeat", lease_seconds=30.0, retain_seconds=86400.0, wait_seconds=0.0, store=True,
        max_body_bytes=10 * 2**20, max_response_bytes=16 * 2**20, digest=False, compare="bytes", scope="principal",
        echo=False, after_retention="run",
    )  # fmt: skip
    assert plain.methods == {"POST", "PUT", "PATCH"}
    assert plain.enabled
    assert not plain.proceeds
    assert plain.codec.encryption is None
    assert b"set-cookie" in plain.codec.deny
    assert plain.keep_status is keeps_status
    assert plain.max_stream_seconds == 300
    assert plain.ledger.namespace == "onceward"


@pytest.mark.parametrize("name", sorted(MiddlewareOptions.__annotations__))
def test_none_means_the_default(name: str) -> None:
    """A missing setting can then be passed on as None."""
    left, plain = admission(**{name: None}), admission()

    assert left.default == plain.default, name
    assert (left.methods, left.paths, left.codec.deny) == (plain.methods, plain.paths, plain.codec.deny)
    assert (left.enabled, left.proceeds, left.max_stream_seconds) == (plain.enabled, plain.proceeds, 300)
    assert left.ledger.namespace == plain.ledger.namespace
    assert left.keep_status is keeps_status


def test_lists_may_be_given_in_any_form_and_case() -> None:
    chosen = admission(methods=iter(["post", "Delete"]), paths=iter(["/api/"]), deny_headers=iter(["X-Total"]))

    assert chosen.methods == {"POST", "DELETE"}
    assert chosen.paths == ("/api/",)
    assert chosen.codec.deny == {b"x-total"}


def test_patterns_select_the_covered_paths() -> None:
    some = admission(paths=["/api/", "/v1"])

    assert admission().covers("/anything")
    assert [path for path in ("/api/x", "/api", "/v1", "/v1/x", "/", "/x/api/") if some.covers(path)] == [
        "/api/x", "/v1", "/v1/x",
    ]  # fmt: skip


def test_a_given_ledger_keeps_its_own_terms(ledger: Ledger) -> None:
    given = Admission(ledger, {})

    assert given.ledger is ledger
    assert given.default.lease_seconds is given.default.retain_seconds is None
    assert ledger._lease_of(given.default.lease_seconds) == 7_000_000
    assert Admission(ledger, {"lease_seconds": 9.0}).default.lease_seconds == 9.0


@pytest.mark.parametrize(("name", "value"), [("namespace", "shop"), ("store_seconds", 1.0)])
def test_options_of_a_ledger_are_refused_beside_a_ledger(ledger: Ledger, name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"{name}= .*that ledger"):
        Admission(ledger, {name: value})  # type: ignore[misc]  # the name of an option
    Admission(ledger, {name: None})  # type: ignore[misc]


def test_only_a_ledger_opened_by_the_middleware_is_closed_with_it(ledger: Ledger) -> None:
    Admission(ledger, {}).close()
    ledger.blocking.begin("s", "k", repeatable=True)

    own = Admission("memory:", {})
    first = own.ledger
    own.close()
    assert own.ledger is not first, "an application that starts again opens it again"
    own.ledger.close()


def test_keys_enable_encryption_and_an_empty_list_does_not() -> None:
    assert admission(encryption_keys=[KEY]).codec.encryption is not None
    assert admission(encryption_keys=[]).codec.encryption is None
    assert admission(encryption_keys=()).codec.encryption is None


def test_a_custom_metrics_registry_is_accepted() -> None:
    admission(metrics=CollectorRegistry())
    admission(metrics=False)


# Which rule holds.


def test_the_rule_of_the_handler_comes_first_then_the_path_then_the_default() -> None:
    made = admission(rules={"/pay/{id}": Rule(required=True)}, wait_seconds=3.0)

    assert made.rule(None, "/other") == made.default
    assert made.rule(None, "/pay/1").required
    assert made.rule(None, "/pay/1").wait_seconds == 3.0
    assert made.rule(Rule(store=False), "/pay/1") == Rule(store=False).over(made.default)


def test_whether_a_key_may_be_required_is_known_without_the_routes() -> None:
    assert admission(required=True).requires
    assert admission(rules={"/pay": Rule(required=True)}).requires


def test_a_custom_store_is_used_directly() -> None:
    store = MemoryStore()

    with closing(Admission(store, {"namespace": "shop", "store_seconds": 0}).ledger) as made:
        assert made._dispatcher.store is store
        assert made.namespace == "shop"
