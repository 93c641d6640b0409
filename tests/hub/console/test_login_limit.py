"""The limit of failed logins."""

from __future__ import annotations

import pytest

from onceward.errors import TooManyRequests
from onceward.hub.console.login_limit import FAILURES_MAX, WINDOW_SECONDS, LoginLimit


def test_an_address_waits_after_too_many_failures_and_others_do_not() -> None:
    now = [0.0]
    limit = LoginLimit(lambda: now[0])
    for _ in range(FAILURES_MAX):
        limit.check("203.0.113.9")
        limit.failed("203.0.113.9")

    with pytest.raises(TooManyRequests) as refused:
        limit.check("203.0.113.9")
    limit.check("203.0.113.10")
    assert refused.value.retry_after_seconds == WINDOW_SECONDS
    now[0] = WINDOW_SECONDS
    limit.check("203.0.113.9")


def test_the_number_of_remembered_addresses_is_bounded() -> None:
    limit = LoginLimit(lambda: 0.0)
    for number in range(5000):
        limit.failed(str(number))

    assert len(limit._failures) == 1000
