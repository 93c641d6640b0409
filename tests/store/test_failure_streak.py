"""Failures of periodic work in a row: which of them are logged."""

from __future__ import annotations

from onceward.errors import StoreUnavailable
from onceward.store.failure_streak import LINE_SECONDS_MAX, FailureStreak

SECONDS = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def logged(streak: FailureStreak, clock: Clock, until: float) -> list[float]:
    """The times at which a job that fails every 30 seconds is logged."""
    lines = []
    while clock.now < until:
        if streak.failed(StoreUnavailable("down")) is not None:
            lines.append(clock.now)
        clock.now += SECONDS
    return lines


def test_the_first_failure_is_logged_and_then_ever_fewer() -> None:
    clock = Clock()
    lines = logged(FailureStreak(clock), clock, 86_400)

    assert lines[:6] == [0, 60, 180, 420, 900, 1860]
    assert lines[-1] - lines[-2] == LINE_SECONDS_MAX
    assert len(lines) < 35


def test_another_kind_of_failure_is_logged_at_once() -> None:
    clock = Clock()
    streak = FailureStreak(clock)
    found = [streak.failed(error) for error in (StoreUnavailable("1"), StoreUnavailable("2"), ValueError("3"))]

    assert found == [1, None, 3]


def test_the_end_of_a_streak_is_reported_once_with_its_length() -> None:
    clock = Clock()
    streak = FailureStreak(clock)
    assert streak.succeeded() is None
    logged(streak, clock, 90)
    ended = streak.succeeded()

    assert ended is not None
    assert (ended.failure_count, ended.seconds) == (3, 90)
    assert streak.succeeded() is None
    assert streak.failed(StoreUnavailable("down")) == 1
