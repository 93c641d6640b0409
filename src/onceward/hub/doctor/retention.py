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
    """Somebody who repeats a request, for how long after the first attempt, and the reason for the number."""

    name: str
    seconds: float
    reason: str


# Their own documents say so. A hub cannot know which of them call it, so they are listed, and are not a warning.
OTHER_CALLERS = (
    RetryingCaller("Slack events", 10 * _MINUTE, "three retries, the last one a few minutes after the first attempt"),
    RetryingCaller(
        "Celery on Redis", 1 * _HOUR, "visibility_timeout is 1 hour by default; an unacknowledged task runs again"
    ),
    RetryingCaller("Shopify webhooks", 4 * _HOUR, "eight retries in 4 hours"),
    RetryingCaller("Amazon SQS, one delivery", 12 * _HOUR, "the visibility timeout is at most 12 hours"),
    RetryingCaller(
        "Svix webhooks", 28 * _HOUR, "the last of eight attempts comes 27 hours and 35 minutes after the first"
    ),
    RetryingCaller("Stripe webhooks", 3 * _DAY, "live events are retried for up to three days"),
    RetryingCaller("GitHub webhooks", 3 * _DAY, "a person can redeliver the events of the last three days"),
    RetryingCaller("Google Pub/Sub", 7 * _DAY, "unacknowledged messages are kept for seven days by default"),
    RetryingCaller("Amazon SQS, all deliveries", 14 * _DAY, "a queue keeps a message for at most fourteen days"),
)


def retention(kept: float, chat: float) -> Iterator[CheckResult]:
    """Check the retention of request keys and of chat keys, both in seconds."""
    table = [
        {
            "caller": one.name,
            "retries_for_seconds": one.seconds,
            "is_covered": kept >= one.seconds,
            "reason": one.reason,
        }
        for one in OTHER_CALLERS
    ]
    shorter = [f"{one.name} ({_span(one.seconds)})" for one in OTHER_CALLERS if kept < one.seconds]
    longer = f"; these retry for longer: {', '.join(shorter)}" if shorter else ""
    advice = "set idempotency.default_ttl_hours to more than the longest retry of your callers"
    if kept < DEADLINE_SECONDS:
        detail = f"outcomes are kept for {_span(kept)}, and the Onceward client retries for {_span(DEADLINE_SECONDS)}"
        yield problem("retention", f"{detail}, so that a retry can run again", advice, callers=table)
    elif kept < DEADLINE_SECONDS_MAX:
        most = f"a client may be set to retry for {_span(DEADLINE_SECONDS_MAX)}"
        yield warning("retention", f"outcomes are kept for {_span(kept)}, and {most}", advice, callers=table)
    else:
        yield ok("retention", f"outcomes are kept for {_span(kept)}{longer}", callers=table)
    if chat < DEADLINE_SECONDS:
        detail = f"the key of a chat message is kept for {_span(chat)}, and clients retry for {_span(DEADLINE_SECONDS)}"
        yield problem("chat-retention", detail, f"set turns.api_ttl_seconds to at least {DEADLINE_SECONDS:g}")
    else:
        yield ok("chat-retention", f"the key of a chat message is kept for {_span(chat)} after its turn")


def _span(seconds: float) -> str:
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.4g} {name}"
    return f"{seconds:.4g} seconds"
