"""Sparklines: points inside their box, the present on the right."""

from __future__ import annotations

import pytest

from onceward.hub.console.sparkline import HEIGHT, POINTS_MIN, WIDTH, sparkline


def test_the_largest_value_is_at_the_top_and_zero_at_the_bottom() -> None:
    points = sparkline((0, 4, 2)).line.split()

    assert len(points) == POINTS_MIN
    assert [one.partition(",")[2] for one in points[-4:]] == ["26", "26", "2", "14"]
    assert (points[0], points[-1]) == ("0,26", "120,14")


@pytest.mark.parametrize("values", [(), (0,), (7,), (0, 0), tuple(range(40))])
def test_every_point_is_inside_the_box(values: tuple[int, ...]) -> None:
    found = sparkline(values)
    points = [tuple(map(float, one.split(","))) for one in found.area.split()]

    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert points[-2][0] == WIDTH
