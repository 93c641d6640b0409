"""The verdicts of `stripe` on a server that responds as Stripe's API does: each status, by id and by search."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.reconcile.doubts import Doubt
from tests.servers.scripted_http import Cut, ScriptedResponse, Step, scripted

from onceward import verdict
from onceward.errors import InvalidOption
from onceward.reconcile import stripe
from onceward.reconcile.stripe import API_REVISION, STATUSES

PREFIXES = {"payment_intent": "pi_1", "charge": "ch_1", "refund": "re_1"}
FINAL = verdict.not_committed(verdict.Final.PROVIDER_FINAL)
KEY = "sk_test_1"


def payment(status: str = "succeeded", kind: str = "payment_intent", **fields: object) -> dict[str, Any]:
    known = {"id": PREFIXES[kind], "object": kind, "status": status, "amount": 10, "currency": "eur"}
    return known | {"client_secret": "secret"} | fields


def answer(data: object, status: int = 200) -> ScriptedResponse:
    return ScriptedResponse(status, {"Content-Type": "application/json"}, json.dumps(data).encode())


def page(*found: dict[str, Any]) -> ScriptedResponse:
    return answer({"object": "search_result", "has_more": False, "data": list(found)})


CASES = [(kind, status, word) for kind, table in STATUSES.items() for status, word in table.items()]


@pytest.mark.parametrize(("kind", "status", "word"), CASES)
def test_each_status_of_the_table_has_its_verdict(doubt: Doubt, kind: str, status: str, word: str) -> None:
    value = {"id": PREFIXES[kind], "object": kind, "status": status, "amount": 10, "currency": "eur"}
    with scripted(answer(payment(status, kind))) as server:
        found = doubt.ask(stripe(KEY, base_url=server.url), PREFIXES[kind])

    expected = {
        "committed": verdict.committed(value), "pending": verdict.pending, "unknown": verdict.unknown,
        "not_committed": FINAL,
    }  # fmt: skip
    assert found == expected[word]
    assert server.seen[0].path == f"/v1/{kind}s/{PREFIXES[kind]}"
    assert server.seen[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.seen[0].headers["stripe-version"] == API_REVISION


def test_only_what_can_no_longer_happen_is_not_committed() -> None:
    final = {(kind, status) for kind, status, word in CASES if word == "not_committed"}

    assert final == {
        ("payment_intent", "canceled"), ("charge", "failed"), ("refund", "failed"), ("refund", "canceled"),
    }  # fmt: skip


@pytest.mark.parametrize("point", [{"id": "pi_1"}, {"payment_intent": "pi_1", "step": 2}])
def test_the_recovery_point_may_be_a_mapping(doubt: Doubt, point: object) -> None:
    with scripted(answer(payment())) as server:
        found = doubt.ask(stripe(lambda: KEY, base_url=server.url, found=lambda one: one["id"]), point)

    assert found == verdict.committed("pi_1")


def test_an_authorised_charge_has_not_moved_money_yet(doubt: Doubt) -> None:
    uncaptured = answer(payment(kind="charge", captured=False))
    with scripted(uncaptured, uncaptured) as server:
        assert doubt.ask(stripe(KEY, base_url=server.url), "ch_1") is verdict.pending

        authorises = stripe(KEY, base_url=server.url, statuses={"requires_capture": "committed"}, found=lambda _: "ok")
        assert doubt.ask(authorises, "ch_1") == verdict.committed("ok")


NO_EVIDENCE: dict[str, Step] = {
    "not found": answer({"error": {"code": "resource_missing"}}, 404),
    "another account": answer({"error": {}}, 403),
    "wrong key": answer({"error": {}}, 401),
    "too many": answer({"error": {}}, 429),
    "broken": answer({"error": {}}, 500),
    "a list": answer([]),
    "another object": answer(payment(id="pi_2")),
    "new status": answer(payment("on_hold")),
    "new object": answer(payment() | {"object": "payment_thing"}),
    "not json": ScriptedResponse(200, {}, b"<xml>"),
    "closed": Cut(),
}


@pytest.mark.parametrize("name", NO_EVIDENCE)
def test_a_response_that_proves_nothing_is_unknown(doubt: Doubt, name: str) -> None:
    with scripted(NO_EVIDENCE[name]) as server:
        assert doubt.ask(stripe(KEY, base_url=server.url), "pi_1") is verdict.unknown


@pytest.mark.parametrize("point", [None, {}, "cus_1", "../pi_1", 7, {"id": None}, ["pi_1"]])
def test_without_an_id_no_request_is_sent(doubt: Doubt, point: object) -> None:
    with scripted(answer(payment())) as server:
        assert doubt.ask(stripe(KEY, base_url=server.url), point) is verdict.unknown

    assert server.seen == []


def tagged(status: str = "succeeded", created: int = 1, key: str = "order 4/2", **fields: Any) -> dict[str, Any]:
    return payment(status, created=created, metadata={"onceward_key": key}, **fields)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([tagged()], verdict.committed("pi_1")),
        (
            [tagged(id="pi_9", created=9), tagged(id="pi_8", created=8), tagged("canceled", 1)],
            verdict.committed("pi_8"),
        ),
        ([tagged("processing"), tagged("canceled")], verdict.pending),
        ([tagged("canceled")], verdict.unknown),
        ([], verdict.unknown),
        ([tagged(key="order 4/22")], verdict.unknown),
        ([payment()], verdict.unknown),
    ],
    ids=["one", "the oldest", "pending", "canceled", "nothing", "another key", "no metadata"],
)
def test_a_search_by_metadata_proves_a_payment_and_never_its_absence(
    doubt: Doubt, results: list[dict[str, Any]], expected: verdict.Verdict
) -> None:
    with scripted(page(*results)) as server:
        reconcile = stripe(KEY, base_url=server.url, metadata="onceward_key", found=lambda one: one["id"])

        assert doubt.ask(reconcile) == expected
    asked = urlsplit(server.seen[0].path)
    assert asked.path == "/v1/payment_intents/search"
    assert parse_qs(asked.query) == {"query": ['metadata["onceward_key"]:"order 4/2"'], "limit": ["100"]}


def test_the_search_quotes_the_key() -> None:
    doubt = Doubt('say "hi" \\')
    with scripted(page()) as server:
        doubt.ask(stripe(KEY, base_url=server.url, metadata="k", search="charges"))
    doubt.ledger.close()

    asked = urlsplit(server.seen[0].path)
    assert asked.path == "/v1/charges/search"
    assert parse_qs(asked.query)["query"] == ['metadata["k"]:"say \\"hi\\" \\\\"']


@pytest.mark.parametrize("results", [{"object": "search_result"}, {"data": {}}, {"data": [7, None]}])
def test_a_malformed_search_result_is_unknown(doubt: Doubt, results: dict[str, object]) -> None:
    with scripted(answer(results)) as server:
        assert doubt.ask(stripe(KEY, base_url=server.url, metadata="k")) is verdict.unknown


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": ""},
        {"base_url": "http://api.stripe.com"},
        {"base_url": "api.stripe.com"},
        {"metadata": ""},
        {"search": "refunds"},
        {"statuses": {"succeeded": "done"}},
        {"statuses": {"paid": "committed"}},
        {"timeout_seconds": -1},
    ],
)
def test_a_wrong_option_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refused:
        stripe(**{"api_key": KEY, **options})

    assert KEY not in str(refused.value)
