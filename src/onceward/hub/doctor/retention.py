"""Retention compared with how long callers retry.

A retry that arrives after the retention of its key runs again. So an outcome must be kept for longer than any caller
repeats its request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onceward.http.client.policy import DEADLINE_SECONDS, DEADLINE_SECONDS_MAX
from onceward.hub.doctor.check_result import CheckResult, ok, problem, warning

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 24 * 3600.0


@dataclass(frozen=True, slots=True)
class RetryingCaller:
    """A caller that repeats a request: for how long after the first attempt, why, and the page that says so."""

    name: str
    seconds: float
    reason: str
    source: str


# Checked against these pages, or what others quote from them, on 2026-11-18. A hub cannot know which of them call it, so
# they are listed, and are not a warning.
OTHER_CALLERS = (
    RetryingCaller(
        "Twilio webhooks",
        15,
        "all attempts together take at most 15 seconds (total time, tt)",
        "https://www.twilio.com/docs/usage/webhooks/webhooks-connection-overrides",
    ),
    RetryingCaller(
        "Slack events",
        6 * _MINUTE,
        "three retries: at once, one minute later, and five minutes after that",
        "https://docs.slack.dev/apis/events-api",
    ),
    RetryingCaller(
        "Celery on Redis",
        1 * _HOUR,
        "visibility_timeout is 1 hour by default; an unacknowledged task runs again",
        "https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html",
    ),
    RetryingCaller(
        "Shopify webhooks",
        4 * _HOUR,
        "eight retries in 4 hours",
        "https://shopify.dev/changelog/updates-to-webhook-retry-mechanism",
    ),
    RetryingCaller(
        "Amazon SQS, one delivery",
        12 * _HOUR,
        "the visibility timeout is 30 seconds by default and at most 12 hours",
        "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ChangeMessageVisibility.html",
    ),
    RetryingCaller(
        "Svix webhooks",
        28 * _HOUR,
        "the last of eight attempts comes 27 hours and 35 minutes after the first",
        "https://docs.svix.com/retries",
    ),
    RetryingCaller(
        "Stripe webhooks",
        3 * _DAY,
        "live events are retried for up to three days",
        "https://docs.stripe.com/webhooks",
    ),
    RetryingCaller(
        "GitHub webhooks",
        3 * _DAY,
        "never retried automatically; a person or a script can redeliver those of the last three days",
        "https://docs.github.com/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks",
    ),
    RetryingCaller(
        "GitHub Enterprise Server webhooks",
        7 * _DAY,
        "the same, for seven days",
        "https://docs.github.com/en/enterprise-server@3.17/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks",
    ),
    RetryingCaller(
        "Google Pub/Sub",
        7 * _DAY,
        "unacknowledged messages are kept for seven days by default, and for at most 31",
        "https://docs.cloud.google.com/pubsub/docs/subscription-properties",
    ),
    RetryingCaller(
        "Amazon SQS, all deliveries",
        14 * _DAY,
        "a queue keeps a message for four days by default, and for at most fourteen",
        "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SetQueueAttributes.html",
    ),
    RetryingCaller(
        "Adyen webhooks",
        30 * _DAY,
        "a queue retries for up to 30 days",
        "https://docs.adyen.com/development-resources/webhooks/troubleshoot",
    ),
)


def retention_checks(key_seconds: float, chat_key_seconds: float) -> Iterator[CheckResult]:
    """Check the retention of request keys and of chat keys, both in seconds."""
    table = [
        {
            "caller": one.name,
            "retries_for_seconds": one.seconds,
            "is_covered": key_seconds >= one.seconds,
            "reason": one.reason,
            "source": one.source,
        }
        for one in OTHER_CALLERS
    ]
    shorter = [f"{one.name} ({_span(one.seconds)})" for one in OTHER_CALLERS if key_seconds < one.seconds]
    longer = f"; these retry for longer: {', '.join(shorter)}" if shorter else ""
    advice = "set idempotency.default_ttl_hours to more than the longest retry of your callers"
    if key_seconds < DEADLINE_SECONDS:
        detail = (
            f"outcomes are kept for {_span(key_seconds)}, and the Onceward client retries for {_span(DEADLINE_SECONDS)}"
        )
        yield problem("retention", f"{detail}, so that a retry can run again", advice, callers=table)
    elif key_seconds < DEADLINE_SECONDS_MAX:
        most = f"a client may be set to retry for {_span(DEADLINE_SECONDS_MAX)}"
        yield warning("retention", f"outcomes are kept for {_span(key_seconds)}, and {most}", advice, callers=table)
    else:
        yield ok("retention", f"outcomes are kept for {_span(key_seconds)}{longer}", callers=table)
    if chat_key_seconds < DEADLINE_SECONDS:
        detail = (
            f"the key of a chat message is kept for {_span(chat_key_seconds)},"
            f" and clients retry for {_span(DEADLINE_SECONDS)}"
        )
        yield problem("chat-retention", detail, f"set turns.api_ttl_seconds to at least {DEADLINE_SECONDS:g}")
    else:
        yield ok("chat-retention", f"the key of a chat message is kept for {_span(chat_key_seconds)} after its turn")


def _span(seconds: float) -> str:
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds:.4g} seconds"
