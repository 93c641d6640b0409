"""The id of a delivery, by each sender's rule."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.http.behaviour.deliveries import DELIVERIES, Delivery, cloudevents_binary, cloudevents_structured
from tests.http.behaviour.hook_routes import SENDERS

from onceward.errors import InvalidKey
from onceward.http import RequestHead

each_sender = pytest.mark.parametrize("sender", SENDERS)


def head_of(delivery: Delivery) -> RequestHead:
    lines = {name.lower(): [value] for name, value in delivery.headers.items()}
    return RequestHead("POST", "/hooks", "", lambda name: lines.get(name, []))


def key_of(sender: str, delivery: Delivery) -> str | None:
    return SENDERS[sender].key.find(head_of(delivery), delivery.body)


def with_json(delivery: Delivery, **fields: object) -> Delivery:
    return replace(delivery, body=json.dumps({**json.loads(delivery.body), **fields}).encode())


def with_headers(delivery: Delivery, **fields: str) -> Delivery:
    return replace(delivery, headers={**delivery.headers, **{n.replace("_", "-"): v for n, v in fields.items()}})


EVENT = "5f2ae71c90d3"
KEYS = {
    "standard": f"msg_{EVENT}",
    "stripe": f"evt_{EVENT}",
    "github": f"72d3162e-cc78-11e3-81ab-{EVENT}",
    "slack": f"Ev{EVENT}",
    "shopify": f"98880550-7158-44d4-b7cd-{EVENT}|orders/create",
    "twilio": f"d3b1-{EVENT}",
    "cloudevents": f"/mycontext/4711,a%7Cb|A234-{EVENT}",
}


@each_sender
def test_the_key_is_the_id_that_the_sender_documents_in_every_attempt(sender: str) -> None:
    keys = {key_of(sender, DELIVERIES[sender](EVENT, attempt, text)) for attempt in range(3) for text in ("a", "b")}

    assert keys == {KEYS[sender]}


def test_both_parts_of_a_joined_key_count() -> None:
    shopify = DELIVERIES["shopify"](EVENT, 0, "a")
    binary, structured = cloudevents_binary(EVENT, 0, "a"), cloudevents_structured(EVENT, 0, "a")

    assert key_of("shopify", replace(shopify, headers={**shopify.headers, "X-Shopify-Topic": "orders/paid"})) == (
        f"98880550-7158-44d4-b7cd-{EVENT}|orders/paid"
    )
    for other in (with_headers(binary, ce_source="/b"), with_json(structured, source="/b")):
        assert key_of("cloudevents", other) == f"/b|A234-{EVENT}"


def test_no_two_events_are_joined_to_the_same_key() -> None:
    event = cloudevents_structured(EVENT, 0, "a")

    pairs = [("a", "b|c"), ("a|b", "c"), ("a%7Cb", "c"), ("a", "b%7Cc")]

    assert len({key_of("cloudevents", with_json(event, source=source, id=name)) for source, name in pairs}) == 4


@pytest.mark.parametrize("missing", ["X-Shopify-Event-Id", "X-Shopify-Topic"])
def test_a_joined_key_needs_all_its_headers(missing: str) -> None:
    delivery = DELIVERIES["shopify"](EVENT, 0, "a")
    rest = {name: value for name, value in delivery.headers.items() if name != missing}

    assert key_of("shopify", replace(delivery, headers=rest)) is None


def test_a_cloudevent_without_a_source_or_an_id_has_no_key() -> None:
    binary, structured = cloudevents_binary(EVENT, 0, "a"), cloudevents_structured(EVENT, 0, "a")

    for other in (
        with_headers(binary, ce_source=""),
        with_headers(binary, ce_id=""),
        with_json(structured, source=None),
        with_json(structured, id=""),
        with_json(structured, id=7),
        replace(structured, body=b"[]"),
    ):
        assert key_of("cloudevents", other) is None


def test_a_batch_of_cloudevents_has_no_single_key() -> None:
    with pytest.raises(InvalidKey, match="each event in a request of its own"):
        key_of("cloudevents", Delivery({"Content-Type": "application/cloudevents-batch+json"}, b"[]"))


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        (b'{"type":"url_verification"}', True),
        (b'{"type":"event_callback"}', False),
        (b'{"type":1}', False),
        (b"{}", False),
        (b"not json", False),
    ],
)
def test_only_a_request_of_slack_that_is_not_an_event_passes_without_an_id(body: bytes, passes: bool) -> None:
    rule = SENDERS["slack"]

    assert rule.passes is not None
    assert rule.passes(head_of(Delivery({}, body)), body) is passes
