"""Webhook rules: the id by which each sender marks a delivery, so that a redelivery runs once.

    @app.post("/hooks/stripe")
    @idempotent(webhook=stripe())
    async def stripe_events(request): ...

    rule             the key of a delivery                                    sent again with the same id
    standard()       `webhook-id`                                             every retry (Standard Webhooks)
    stripe()         `id` of the event                                        every retry, and a resend
    github()         `X-GitHub-Delivery`                                      a redelivery by hand; GitHub never retries
    slack()          `event_id`                                               every retry
    shopify()        `X-Shopify-Event-Id` and `X-Shopify-Topic`               every retry, and other subscriptions
    twilio()         `I-Twilio-Idempotency-Token`                             every retry
    cloudevents()    `source` and `id`, in headers or in the body             every retry

A webhook rule means: keys belong to the sender and the endpoint; only the id is compared, and a changed body is logged;
only a 2xx response is stored, and after any other the next delivery runs again; responses are kept for 7 days. A
delivery without its id gets 400. The application verifies the signature, before the middleware or in the handler.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from onceward.errors import InvalidKey, InvalidOption
from onceward.http.plain_function import check_plain_function
from onceward.http.request.key_source import (
    BodyNeeded,
    KeySource,
    RequestHead,
    as_source,
    header,
    joined,
    json_field,
    key_text,
    parsed,
)

# Longer than any of these senders retries on its own. Stripe and Standard Webhooks retry for three days.
RETAIN_SECONDS = 7 * 24 * 3600.0

_SENDER = re.compile(r"[A-Za-z0-9._-]{1,64}")
_EVENT_MEDIA_TYPE = "application/cloudevents"
_BATCH_MEDIA_TYPE = "application/cloudevents-batch"


@dataclass(frozen=True, slots=True)
class WebhookRule:
    """The rule of one sender, for `@idempotent(webhook=…)`.

    Attributes:
        sender: The name of the sender, which is the principal of its keys.
        key: Where a delivery carries its id.
        passes: Returns whether a request without an id is not a delivery, and runs without a key. It gets the head
            and the body.

    Raises:
        InvalidOption: The name of the sender is not valid, or `key` or `passes` is of another kind.
    """

    sender: str
    key: KeySource
    passes: Callable[[RequestHead, bytes], bool] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sender, str) or not _SENDER.fullmatch(self.sender):
            raise InvalidOption(f"sender must be 1 to 64 characters of A-Z a-z 0-9 . _ -, got {self.sender!r}")
        if self.passes is not None:
            check_plain_function("passes=", self.passes, "the head", "the body")
        object.__setattr__(self, "key", as_source(self.key))


def standard() -> WebhookRule:
    """Return the rule of Standard Webhooks: the header `webhook-id`.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("standard", header("webhook-id"))


def stripe() -> WebhookRule:
    """Return the rule of Stripe: the `id` of the event, such as `evt_1NG8Du2eZvKYlo2C`.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("stripe", json_field("id"))


def github() -> WebhookRule:
    """Return the rule of GitHub: the header `X-GitHub-Delivery`.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("github", header("X-GitHub-Delivery"))


def slack() -> WebhookRule:
    """Return the rule of Slack's Events API: the field `event_id`.

    Requests that are not events, such as `url_verification`, have no id. They run without a key.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("slack", json_field("event_id"), _is_not_a_slack_event)


def shopify() -> WebhookRule:
    """Return the rule of Shopify: the headers `X-Shopify-Event-Id` and `X-Shopify-Topic` together.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("shopify", JoinedHeaders(("X-Shopify-Event-Id", "X-Shopify-Topic")))


def twilio() -> WebhookRule:
    """Return the rule of Twilio: the header `I-Twilio-Idempotency-Token`.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("twilio", header("I-Twilio-Idempotency-Token"))


def cloudevents() -> WebhookRule:
    """Return the rule of CloudEvents: `source` and `id` together, in binary and in structured mode.

    Both modes of one event have the same key. A batch of events has no single id and gets 400.

    Returns:
        A rule for `@idempotent(webhook=…)`.
    """
    return WebhookRule("cloudevents", CloudEventKey())


@dataclass(frozen=True, slots=True)
class JoinedHeaders:
    """A key made from several headers, all of which must be sent."""

    header_names: tuple[str, ...]
    reads_body = False

    @property
    def name(self) -> str:
        return "the headers " + " and ".join(self.header_names)

    def find(self, head: RequestHead, body: bytes | None) -> str | None:
        values = [header(name).find(head, body) for name in self.header_names]
        found = [value for value in values if value is not None]
        return key_text(joined(*found), self.name) if len(found) == len(values) else None


@dataclass(frozen=True, slots=True)
class CloudEventKey:
    """The `source` and `id` of an event, from the headers `ce-source` and `ce-id` or from the JSON body."""

    name = "the source and the id of a CloudEvent"
    reads_body = True

    def find(self, head: RequestHead, body: bytes | None) -> str | None:
        media_type = head.header("content-type").lower()
        if media_type.startswith(_BATCH_MEDIA_TYPE):
            raise InvalidKey("a batch of CloudEvents has no single id; send each event in a request of its own")
        if not media_type.startswith(_EVENT_MEDIA_TYPE):
            source, event = head.header("ce-source"), head.header("ce-id")
            # The HTTP binding percent-encodes characters that a header cannot carry.
            return self._key(unquote(source), unquote(event)) if source and event else None
        if body is None:
            raise BodyNeeded
        content = parsed(body) or {}
        origin, name = content.get("source"), content.get("id")
        return self._key(origin, name) if isinstance(origin, str) and isinstance(name, str) else None

    def _key(self, source: str, event: str) -> str | None:
        return key_text(joined(source, event), self.name) if source and event else None


def _is_not_a_slack_event(_head: RequestHead, body: bytes) -> bool:
    kind = (parsed(body) or {}).get("type")
    return isinstance(kind, str) and kind != "event_callback"
