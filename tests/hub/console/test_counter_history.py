"""The history of counters: totals, increases, and at most one point for each step."""

from __future__ import annotations

from onceward.hub.console.counter_history import POINTS, SAMPLES_MAX, CounterHistory, CounterView


def test_a_counter_shows_its_total_and_what_came_since_the_first_sample() -> None:
    totals = {"new": 5.0}
    history = CounterHistory(lambda: dict(totals), lambda: 0.0)
    assert history.view("new") == CounterView(5, (), 0)
    for value in (5, 7, 7):
        totals["new"] = value
        history.sample()
    totals["new"] = 10

    assert history.view("new") == CounterView(10, (2, 0, 3), 5)
    assert history.view("unknown") == CounterView(0, (0, 0, 0), 0)


def test_many_samples_share_points_and_nothing_is_lost() -> None:
    counted = [0]
    history = CounterHistory(lambda: {"new": counted[0]}, lambda: 0.0)
    for number in range(SAMPLES_MAX + 50):
        counted[0] = number
        history.sample()
    view = history.view("new")

    assert len(view.steps) <= POINTS
    assert sum(view.steps) == view.last_hour == SAMPLES_MAX - 1


def test_a_restarted_counter_does_not_count_backwards() -> None:
    values = iter([100.0, 3.0, 4.0])
    history = CounterHistory(lambda: {"new": next(values)}, lambda: 0.0)
    history.sample()
    history.sample()

    assert history.view("new").steps == (0, 1)
