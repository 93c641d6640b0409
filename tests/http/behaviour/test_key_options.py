"""The options of keys, comparison, scope, format, echo, retention and limits, under ASGI and under WSGI."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.http.asgi_and_wsgi import SIDES, Answer, Effects, GuardedApp, guarded_app

from onceward.http import Refusal, Rule, first_of, header, json_field, query
from onceward.http.webhooks import github
from onceward.ledger import Ledger
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

both_sides = pytest.mark.parametrize("side", SIDES)
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def effects() -> Effects:
    return Effects()


class Start:
    """Starts guarded applications, and closes them."""

    def __init__(self, side: str, effects: Effects) -> None:
        self._side, self._effects = side, effects
        self.open: list[Any] = []

    def __call__(self, rule: Rule | None = None, store: Any = None, **options: Any) -> GuardedApp:
        rules = {} if rule is None else {"/ruled": rule, "/ruled/*": rule}
        context = guarded_app(self._side, self._effects, store, rules=rules, **options)
        self.open.append(context)
        return context.__enter__()


@pytest.fixture(params=SIDES)
def start(request: pytest.FixtureRequest, effects: Effects) -> Iterator[Start]:
    starter = Start(request.param, effects)
    yield starter
    for context in starter.open:
        context.__exit__(None, None, None)


def refusal(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status, json.loads(answer.body)["code"]


# key=


def test_a_key_in_a_header_of_the_middleware_makes_a_request_run_once(start: Start, effects: Effects) -> None:
    app = start(key=header("Webhook-Id"))

    first = app.send(headers={"Webhook-Id": "m1"})
    second = app.send(headers={"Webhook-Id": "m1"})

    assert (first.body, second.body, second.replayed) == (b"1", b"1", True)
    app.send(key="ignored")
    app.send(key="ignored")
    assert len(effects.runs) == 3, "the two key headers are not a key any more"


def test_a_key_in_the_query_makes_a_request_run_once(start: Start, effects: Effects) -> None:
    app = start(key=query("delivery"))

    for _ in range(2):
        app.send(query="delivery=d1&x=1")

    assert len(effects.runs) == 1
    assert refusal(app.send(query="delivery=d1&x=2")) == (422, "unprocessable")


def test_a_key_in_the_body_of_a_route_makes_a_request_run_once(start: Start, effects: Effects) -> None:
    app = start(Rule(key=json_field("event.id")))
    body = b'{"event":{"id":"e1"},"text":"' + b"x" * 300_000 + b'"}'

    answers = [app.send("/ruled", body, headers=JSON) for _ in range(2)]

    assert [answer.replayed for answer in answers] == [False, True]
    assert effects.runs == [("/ruled", body)], "the handler gets the whole body, from memory or from a file"


def test_without_a_key_in_the_body_the_handler_runs_with_its_body(start: Start, effects: Effects) -> None:
    app = start(Rule(key=json_field("id")))
    body = b"y" * 300_000

    for _ in range(2):
        assert app.send("/ruled", body).status == 200

    assert effects.runs == [("/ruled", body)] * 2


def test_a_required_key_in_the_body_is_named_in_the_refusal(start: Start, effects: Effects) -> None:
    app = start(Rule(key=first_of(header("X-Id"), json_field("id")), required=True))

    answer = app.send("/ruled", b"{}")

    assert refusal(answer) == (400, "badRequest")
    assert "the header X-Id or the JSON field id" in json.loads(answer.body)["detail"]
    assert refusal(app.send("/ruled", b'{"id":[]}')) == (400, "badRequest")
    assert not effects.runs


@pytest.mark.parametrize(
    ("source", "sent", "field"),
    [
        (header("Webhook-Id"), {"headers": {"Webhook-Id": "a b"}}, "Webhook-Id"),
        (query("delivery"), {"query": "delivery="}, "delivery"),
        (json_field("event.id"), {"body": b'{"event":{"id":true}}'}, "event.id"),
        (first_of(header("X-A"), query("b")), {"query": "b="}, "the header X-A or the query parameter b"),
    ],
)
def test_a_refusal_names_the_field_that_must_have_the_key(
    start: Start, effects: Effects, source: Any, sent: dict[str, Any], field: str
) -> None:
    app = start(Rule(key=source, required=True))

    for answer in (app.send("/ruled"), app.send("/ruled", **sent)):
        assert refusal(answer) == (400, "badRequest")
        assert [error["field"] for error in json.loads(answer.body)["errors"]] == [field]
    assert not effects.runs


def test_a_function_of_the_head_and_the_body_gives_the_key(start: Start, effects: Effects) -> None:
    def batch(head: Any, body: bytes) -> str | None:
        return f"{head.method} {head.path}?{head.query} {head.header('x-batch')} {body[:1].decode()}"

    app = start(Rule(key=batch, compare="bytes"))

    app.send("/ruled", b"a1", headers={"X-Batch": "7"}, query="p=1")

    assert refusal(app.send("/ruled", b"a2", headers={"X-Batch": "7"}, query="p=1")) == (422, "unprocessable")
    assert app.send("/ruled", b"b1", headers={"X-Batch": "7"}, query="p=1").body == b"2"
    assert len(effects.runs) == 2


def test_a_body_that_is_too_large_is_refused_before_its_key_is_read(start: Start, effects: Effects) -> None:
    app = start(Rule(key=json_field("id"), max_body_bytes=10, problem="ucp_error"))

    answer = app.send("/ruled", b'{"id":"' + b"x" * 100 + b'"}')

    assert (answer.status, json.loads(answer.body)["code"]) == (413, "payload_too_large")
    assert not effects.runs


def test_other_routes_keep_the_two_key_headers(start: Start, effects: Effects) -> None:
    app = start(Rule(key=json_field("id")))

    answers = [app.send("/other", b"1", "k") for _ in range(2)]

    assert answers[1].replayed
    assert refusal(app.send("/other", b"2", "k")) == (422, "unprocessable")
    assert refusal(app.send("/other", b"2", headers={"Idempotency-Key": "a", "X-Idempotency-Key": "b"}))[0] == 400
    assert len(effects.runs) == 1


# compare=


def test_json_bodies_with_the_same_value_are_the_same_request(start: Start, effects: Effects) -> None:
    app = start(compare="json")

    app.send(body=b'{"amount":1,"items":["a","b"]}', key="k", headers=JSON)

    assert app.send(body=b'{ "items": ["a","\\u0062"], "amount": 1.0 }', key="k", headers=JSON).replayed
    assert app.send(body=b'{"amount":1,"items":["a","b"]}', key="k", query="page=2").replayed
    for other in (b'{"amount":1,"items":["b","a"]}', b'{"amount":1,"items":["a","b"],"note":null}'):
        assert refusal(app.send(body=other, key="k", headers=JSON)) == (422, "unprocessable")
    assert refusal(app.send("/other", b'{"amount":1,"items":["a","b"]}', "k")) == (422, "unprocessable")
    assert len(effects.runs) == 1


@pytest.mark.parametrize("body", [b"not json", b'{"a":1,"a":1}', b"[NaN]"])
def test_a_body_without_a_json_value_is_compared_by_its_bytes(start: Start, body: bytes) -> None:
    app = start(compare="json")

    app.send(body=body, key="k")

    assert app.send(body=body, key="k").replayed
    assert refusal(app.send(body=body + b" ", key="k")) == (422, "unprocessable")


def test_a_large_json_body_is_compared_by_its_value(start: Start) -> None:
    app = start(compare="json")
    value = list(range(15_000))

    app.send(body=json.dumps(value).encode(), key="k")

    assert app.send(body=json.dumps(value, separators=(",", ":")).encode(), key="k").replayed
    assert refusal(app.send(body=json.dumps([*value, 1]).encode(), key="k")) == (422, "unprocessable")


def test_only_the_bytes_of_the_body_are_compared(start: Start) -> None:
    app = start(compare="body")
    form = {"Content-Type": "multipart/form-data; boundary=x"}

    app.send(body=b'{"a":1}', key="k", headers=JSON)

    assert app.send(body=b'{"a":1}', key="k", headers=form, query="q=1").replayed
    assert refusal(app.send(body=b'{"a": 1}', key="k", headers=JSON)) == (422, "unprocessable")


def form(boundary: str, value: str = "1") -> dict[str, Any]:
    part = f'Content-Disposition: form-data; name="a"\r\n\r\n{value}'
    return {
        "body": f"--{boundary}\r\n{part}\r\n--{boundary}--\r\n".encode(),
        "headers": {"Content-Type": f"multipart/form-data; boundary={boundary}"},
    }


def test_under_json_a_form_is_compared_by_its_parts(start: Start) -> None:
    app = start(compare="json")

    app.send(key="k", **form("one"))

    assert app.send(key="k", **form("two")).replayed
    assert refusal(app.send(key="k", **form("one", "2"))) == (422, "unprocessable")


def test_where_only_the_bytes_are_compared_so_are_those_of_a_form(start: Start) -> None:
    app = start(compare="body")

    app.send(key="k", **form("one"))

    assert app.send(key="k", **form("one")).replayed
    assert refusal(app.send(key="k", **form("two"))) == (422, "unprocessable")


# scope=


def test_with_the_scope_of_an_endpoint_the_same_key_elsewhere_is_another_operation(
    start: Start, effects: Effects
) -> None:
    app = start(scope="endpoint")
    long_name = {"Authorization": "Bearer " + "x" * 400}

    for path, method in (("/a", "POST"), ("/b", "POST"), ("/a", "PUT")):
        assert not app.send(path, b"1", "k", method=method).replayed
        assert app.send(path, b"1", "k", method=method).replayed
        assert not app.send(path, b"1", "k", method=method, headers=long_name).replayed
    assert refusal(app.send("/a", b"2", "k")) == (422, "unprocessable")
    assert len(effects.runs) == 6


def test_a_long_principal_fits_into_the_scope_of_an_endpoint(start: Start, effects: Effects) -> None:
    app = start(scope="endpoint", principal=lambda _request: "é" * 80, namespace="n" * 64)

    for path in ("/a", "/" + "b" * 500, "/a"):
        assert app.send(path, b"1", "k").status == 200

    assert len(effects.runs) == 2


# problem= and echo=


def test_a_function_formats_every_refusal(start: Start) -> None:
    seen: list[Refusal] = []

    def mine(refused: Refusal) -> Any:
        seen.append(refused)
        return {"error": refused.code} if refused.kind != "mismatch" else (418, {"X-Mine": "1"}, "teapot")

    app = start(problem=mine, required=True)
    app.send(body=b"1", key="k")

    answer = app.send(body=b"2", key="k")
    missing = app.send()

    assert (answer.status, answer.headers["x-mine"], answer.body) == (418, "1", b"teapot")
    assert (missing.status, json.loads(missing.body)) == (400, {"error": "badRequest"})
    assert [refused.kind for refused in seen] == ["mismatch", "key_required"]


def test_every_response_to_a_keyed_request_echoes_its_key_as_it_was_sent(start: Start, effects: Effects) -> None:
    app = start(echo=True)
    effects.replies = [(200, {"Content-Type": "text/plain"}, b"a"), (500, {"Content-Type": "text/plain"}, b"b")]

    answers = [
        app.send(body=b"1", key='"k"'),
        app.send(body=b"1", key="k"),
        app.send(body=b"2", key="k"),
        app.send(body=b"1", key="fails"),
    ]

    assert [answer.headers["idempotency-key"] for answer in answers] == ['"k"', "k", "k", "fails"]
    assert [answer.status for answer in answers] == [200, 200, 422, 500]
    assert answers[1].replayed
    assert "idempotency-key" not in app.send(body=b"1").headers


def test_the_key_of_another_source_is_echoed_and_an_echo_of_the_handler_is_kept(start: Start, effects: Effects) -> None:
    app = start(Rule(key=json_field("id"), echo=True))
    effects.replies = [
        (200, {"Content-Type": "text/plain"}, b""),
        (200, {"Content-Type": "text/plain", "Idempotency-Key": "own"}, b""),
    ]

    assert app.send("/ruled", b'{"id":"b1"}', "unrelated").headers["idempotency-key"] == "b1"
    assert app.send("/ruled", b'{"id":"b2"}').headers["idempotency-key"] == "own"


# Changing the options between two attempts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"namespace": "other"}),
        ({}, {"principal": lambda _request: "ann"}),
        ({}, {"scope": "endpoint"}),
        ({"key": header("X-A")}, {"key": header("X-B")}),
    ],
)
def test_another_namespace_principal_scope_or_key_is_a_new_key_space(
    start: Start, effects: Effects, before: dict[str, Any], after: dict[str, Any]
) -> None:
    store, sent = MemoryStore(), {"X-A": "1", "X-B": "2"}
    start(store=store, **before).send(body=b"1", key="k", headers=sent)

    answer = start(store=store, **after).send(body=b"1", key="k", headers=sent)

    assert (answer.status, answer.replayed, len(effects.runs)) == (200, False, 2)


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(("bytes", "body", "json"), 2)])
def test_a_retry_that_spans_a_change_of_the_comparison_gets_422(
    start: Start, effects: Effects, before: str, after: str
) -> None:
    store = MemoryStore()
    start(store=store, compare=before).send(body=b'{"a":1}', key="k", headers=JSON)

    answer = start(store=store, compare=after).send(body=b'{"a":1}', key="k", headers=JSON)

    assert refusal(answer) == (422, "unprocessable")
    assert len(effects.runs) == 1


# after_retention=


def test_a_refused_key_never_runs_again_after_its_retention(start: Start, effects: Effects) -> None:
    clock = PinnedClock()
    store = MemoryStore(clock=clock)
    app = start(store=store, after_retention="refuse", retain_seconds=60.0)
    app.send(body=b"1", key="k")
    assert app.send(body=b"1", key="k").replayed

    clock.advance(61)

    assert refusal(app.send(body=b"1", key="k")) == (409, "expired")
    assert refusal(app.send(body=b"2", key="k")) == (422, "unprocessable")
    assert len(effects.runs) == 1
    clock.advance(30 * 24 * 3600)
    assert app.send(body=b"1", key="k").status == 200
    assert len(effects.runs) == 2


def test_a_key_after_its_retention_is_counted_as_expired_and_not_as_a_replay(start: Start) -> None:
    clock, registry = PinnedClock(), CollectorRegistry()
    app = start(store=MemoryStore(clock=clock), after_retention="refuse", retain_seconds=60.0, metrics=registry)
    app.send(body=b"1", key="k")

    clock.advance(61)
    app.send(body=b"1", key="k")

    assert registry.get_sample_value("idempotency_check_total", {"status": "expired"}) == 1
    assert registry.get_sample_value("idempotency_check_total", {"status": "duplicate_completed"}) == 0
    assert registry.get_sample_value("idempotency_cache_hit_total") == 0


def test_a_route_may_refuse_keys_that_its_middleware_frees(start: Start, effects: Effects) -> None:
    clock = PinnedClock()
    app = start(Rule(after_retention="refuse", store=False), MemoryStore(clock=clock), retain_seconds=60.0)
    for path in ("/ruled", "/other"):
        app.send(path, b"1", path)

    clock.advance(61)

    assert refusal(app.send("/ruled", b"1", "/ruled")) == (409, "expired")
    assert app.send("/other", b"1", "/other").status == 200
    assert len(effects.runs) == 3


# max_keys_per_principal=


def test_new_keys_above_the_limit_get_429_and_nothing_is_written(start: Start, effects: Effects) -> None:
    app = start(max_keys_per_principal=2)
    for key in ("a", "b"):
        assert app.send(body=b"1", key=key).status == 200

    answer = app.send(body=b"1", key="c")

    assert refusal(answer) == (429, "tooManyRequests")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert len(effects.runs) == 2
    assert keys_in(app.ledger) == {"a", "b"}


def test_retries_of_a_known_key_are_never_limited(start: Start, effects: Effects) -> None:
    app = start(max_keys_per_principal=1)
    effects.replies = [(500, {"Content-Type": "text/plain"}, b"")]
    app.send(body=b"1", key="a")

    answers = [app.send(body=b"1", key="a").status for _ in range(3)]

    assert answers == [200, 200, 200]
    assert app.send(body=b"1", key="b").status == 429


def test_a_retry_that_runs_again_does_not_count_as_a_new_key(start: Start, effects: Effects) -> None:
    app = start(max_keys_per_principal=2)
    effects.replies = [(500, {"Content-Type": "text/plain"}, b"")] * 2

    assert [app.send(body=b"1", key="a").status for _ in range(3)] == [500, 500, 200]

    assert [app.send(body=b"1", key=key).status for key in "bc"] == [200, 429]


def test_a_replay_or_a_refusal_does_not_count_as_a_new_key(start: Start) -> None:
    app = start(max_keys_per_principal=2)
    app.send(body=b"1", key="a")

    assert [app.send(body=body, key="a").status for body in (b"1", b"2", b"1")] == [200, 422, 200]

    assert app.send(body=b"1", key="b").status == 200
    assert app.send(body=b"1", key="c").status == 429


def test_anonymous_callers_are_limited_by_address_and_others_by_name(start: Start) -> None:
    app = start(max_keys_per_principal=1, session_cookies=("sid",))
    ann, bob = {"Authorization": "Bearer ann"}, {"Authorization": "Bearer bob"}

    statuses = [
        app.send(key="1").status,
        app.send(key="2").status,
        app.send(key="3", headers={"Cookie": "sid=other"}).status,
        app.send(key="4", address="10.0.0.2").status,
        app.send(key="5", headers=ann).status,
        app.send(key="6", headers=bob).status,
        app.send(key="7", headers=ann, address="10.0.0.3").status,
    ]

    assert statuses == [200, 429, 429, 200, 200, 200, 429]


def keys_in(ledger: Ledger) -> set[str]:
    return {entry.key for entry in ledger.blocking.scan().entries}


# webhook=


@pytest.mark.parametrize("status", [302, 404, 500])
def test_only_a_success_of_a_webhook_is_stored(start: Start, effects: Effects, status: int) -> None:
    app = start(Rule(webhook=github()))
    effects.replies = [(status, {"Content-Type": "text/plain"}, b"")]
    delivery = {"X-GitHub-Delivery": "d1"}

    answers = [app.send("/ruled", b"{}", headers=delivery) for _ in range(3)]

    assert [(answer.status, answer.replayed) for answer in answers] == [(status, False), (200, False), (200, True)]
    assert app.send("/ruled/two", b"{}", headers=delivery).body == b"3", "another endpoint gets the delivery too"
