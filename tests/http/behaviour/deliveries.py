"""Deliveries of each sender, with the headers and the body that it documents. Retries differ as the senders say."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class Delivery:
    headers: dict[str, str]
    body: bytes


JSON = "application/json"


def standard(event: str, attempt: int, text: str) -> Delivery:
    """Standard Webhooks: the id stays, the timestamp and the signature change with every attempt."""
    body = {"type": "invoice.paid", "timestamp": "2026-11-03T20:26:10.344522Z", "data": {"note": text}}
    headers = {
        "content-type": JSON,
        "webhook-id": f"msg_{event}",
        "webhook-timestamp": str(1_674_087_231 + attempt),
        "webhook-signature": f"v1,{'K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI'}{attempt}=",
    }
    return Delivery(headers, json.dumps(body).encode())


def stripe(event: str, attempt: int, text: str) -> Delivery:
    """Stripe: `pending_webhooks` may change between two attempts."""
    body = {
        "id": f"evt_{event}",
        "object": "event",
        "api_version": "2026-10-28.acacia",
        "created": 1_686_089_970,
        "data": {"object": {"id": "seti_1NG8Du2eZvKYlo2C9XMqbR0x", "object": "setup_intent", "description": text}},
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": "setup_intent.created",
    }
    headers = {"Content-Type": f"{JSON}; charset=utf-8", "Stripe-Signature": f"t={1_492_774_577 + attempt},v1=5257a8"}
    return Delivery(headers, json.dumps(body, indent=2).encode())


def github(event: str, attempt: int, text: str) -> Delivery:
    """GitHub: a redelivery by hand has the same GUID."""
    del attempt
    body = {"action": "opened", "issue": {"number": 1347, "title": text}, "repository": {"id": 1_296_269}}
    headers = {
        "Content-Type": JSON,
        "User-Agent": "GitHub-Hookshot/044aadd",
        "X-GitHub-Delivery": f"72d3162e-cc78-11e3-81ab-{event[:12]}",
        "X-GitHub-Event": "issues",
        "X-GitHub-Hook-ID": "292430182",
        "X-Hub-Signature-256": "sha256=d57c68ca6f92289e6987922ff26938930f6e66a2d161ef06abdf1859230aa23c",
    }
    return Delivery(headers, json.dumps(body).encode())


def slack(event: str, attempt: int, text: str) -> Delivery:
    """Slack: a retry has `X-Slack-Retry-Num`, and the same `event_id`."""
    body = {
        "token": "XXYYZZ",
        "team_id": "T123ABC456",
        "api_app_id": "A123ABC456",
        "event": {"type": "app_mention", "user": "U123ABC456", "text": text, "ts": "1515449522.000016"},
        "type": "event_callback",
        "event_id": f"Ev{event}",
        "event_time": 1_515_449_522_000_016,
    }
    headers = {"Content-Type": JSON, "X-Slack-Request-Timestamp": str(1_531_420_618 + attempt)}
    if attempt:
        headers |= {"X-Slack-Retry-Num": str(attempt), "X-Slack-Retry-Reason": "http_timeout"}
    return Delivery(headers, json.dumps(body).encode())


def shopify(event: str, attempt: int, text: str) -> Delivery:
    """Shopify: the webhook id may differ, the event id does not."""
    headers = {
        "Content-Type": JSON,
        "X-Shopify-Topic": "orders/create",
        "X-Shopify-Hmac-Sha256": "XWmrwMey6OsLMeiZKwP4FppHH3cmAiiJJAweH5Jo4bM=",
        "X-Shopify-Shop-Domain": "example.myshopify.com",
        "X-Shopify-API-Version": "2026-10",
        "X-Shopify-Webhook-Id": f"b54557e4-bdd9-4b37-8a5f-bf7d70bcd04{attempt % 10}",
        "X-Shopify-Event-Id": f"98880550-7158-44d4-b7cd-{event[:12]}",
        "X-Shopify-Triggered-At": "2026-03-29T18:00:27.877041743Z",
    }
    return Delivery(headers, json.dumps({"id": 820_982_911_946_154_508, "note": text}).encode())


def twilio(event: str, attempt: int, text: str) -> Delivery:
    """Twilio: a form, not JSON."""
    del attempt
    form = {"MessageSid": "SM1234567890abcdef", "From": "+15551234567", "To": "+15557654321", "Body": text}
    headers = {
        "Content-Type": "application/x-www-form-urlencoded; charset=UTF-8",
        "X-Twilio-Signature": "0/KCTR6DLpKmkAf8muzZqo1nDgQ=",
        "I-Twilio-Idempotency-Token": f"d3b1-{event}",
    }
    return Delivery(headers, urlencode(form).encode())


def cloudevents_structured(event: str, attempt: int, text: str) -> Delivery:
    del attempt
    body = {
        "specversion": "1.0",
        "type": "com.example.someevent",
        "source": "/mycontext/4711,a|b",
        "id": f"A234-{event}",
        "datacontenttype": JSON,
        "data": {"note": text},
    }
    return Delivery({"Content-Type": "application/cloudevents+json; charset=utf-8"}, json.dumps(body).encode())


def cloudevents_binary(event: str, attempt: int, text: str) -> Delivery:
    del attempt
    headers = {
        "Content-Type": JSON,
        "ce-specversion": "1.0",
        "ce-type": "com.example.someevent",
        "ce-source": "/mycontext/4711,a%7Cb",
        "ce-id": f"A234-{event}",
    }
    return Delivery(headers, json.dumps({"note": text}).encode())


def cloudevents(event: str, attempt: int, text: str) -> Delivery:
    """A redelivery of a broker may come in the other mode."""
    return (cloudevents_binary if attempt % 2 else cloudevents_structured)(event, attempt, text)


DELIVERIES: dict[str, Callable[[str, int, str], Delivery]] = {
    "standard": standard,
    "stripe": stripe,
    "github": github,
    "slack": slack,
    "shopify": shopify,
    "twilio": twilio,
    "cloudevents": cloudevents,
}
