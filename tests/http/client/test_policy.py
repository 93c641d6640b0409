from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.http.client.policy import RetryPolicy, read_whole, retry_after_seconds, worth_another_try

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        (" 3 ", 3.0),
        ("1.5", 1.5),
        ("9" * 400, float("inf")),
        ("-1", None),
        (" 7\x1f", 7.0),
        ("+1", None),
        ("1e3", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("soon", None),
        ("1, 2", None),
        ("Tue, 01 Jan 2030 12:00:30 GMT", 30.0),
        ("Tuesday, 01-Jan-30 12:00:30 GMT", 30.0),
        ("Tue Jan  1 12:00:30 2030", 30.0),
        ("Tue, 01 Jan 2030 11:00:00 GMT", 0.0),
        ("Tue, 99 Jan 2030 11:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(text, None, NOW) == seconds


def test_a_retry_after_date_is_counted_from_the_servers_clock() -> None:
    """A client whose clock is an hour late must not wait for an hour."""
    server = NOW + timedelta(hours=1)
    retry_after = format_datetime(server + timedelta(seconds=5), usegmt=True)

    assert retry_after_seconds(retry_after, format_datetime(server, usegmt=True), NOW) == 5
    assert retry_after_seconds(retry_after, "nonsense", NOW) == 3605


@given(st.text(), st.none() | st.text())
def test_no_header_value_breaks_the_parser(text: str, date: str | None) -> None:
    assert (retry_after_seconds(text, date, NOW) or 0.0) >= 0


@given(
    tries=st.integers(1, 5000),
    retry_after=st.floats(0, 100),
    left=st.floats(-10, 200),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_a_pause_is_never_shorter_than_requested_and_never_beyond_the_deadline(
    tries: int, retry_after: float, left: float, jitter: float
) -> None:
    policy = RetryPolicy(tries=4000)
    pause = policy.pause(tries, retry_after, left, jitter)

    if pause is None:
        assert tries >= 4000 or left <= retry_after + policy.longest_pause_seconds
    else:
        assert tries < 4000
        assert retry_after <= pause < left
        assert pause <= retry_after + policy.longest_pause_seconds


def test_jitter_does_not_push_a_requested_pause_beyond_the_deadline() -> None:
    assert RetryPolicy().pause(9, retry_after=10.0, left=10.5, jitter=0.9) == 10.0
    assert RetryPolicy().pause(9, retry_after=10.0, left=10.0, jitter=0.0) is None


@pytest.mark.parametrize("status", [100, 200, 302, 404, 422, 499, 600])
def test_a_permanent_response_is_final_even_with_retry_after(status: int) -> None:
    assert not worth_another_try(status, None, None)
    assert not worth_another_try(status, 1.0, None)


@pytest.mark.parametrize(
    ("length", "media_type", "whole"),
    [
        ("0", None, True),
        ("1048576", "text/event-stream", True),
        ("1048577", "application/json", False),
        ("x", None, False),
        ("²", None, False),
        (None, "application/json", True),
        (None, "Application/Problem+JSON; charset=utf-8", True),
        (None, "application/x-ndjson", False),
        (None, "text/event-stream", False),
        (None, None, False),
    ],
)
def test_short_and_json_responses_are_read_before_they_are_returned(
    length: str | None, media_type: str | None, whole: bool
) -> None:
    assert read_whole(length, media_type) == whole
