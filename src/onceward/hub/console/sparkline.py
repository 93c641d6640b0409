"""Sparklines: the points of an SVG polyline. The stylesheet gives it its colours, because the page has no inline style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120, 28
# A short history is on the right, where the present is.
POINTS_MIN = 40
# Room for the line's own width.
_MARGIN = 2


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The line and the area under it, as the attribute `points`."""

    line: str
    area: str


def sparkline(values: Sequence[int]) -> Sparkline:
    """Return the sparkline of some values, oldest first. Without any increase, it is a line at the bottom."""
    values = (*(0,) * (POINTS_MIN - len(values)), *values)
    top = max(1, *values)
    step = WIDTH / (len(values) - 1)
    floor = HEIGHT - _MARGIN
    points = [
        f"{round(number * step, 1):g},{round(floor - value / top * (floor - _MARGIN), 1):g}"
        for number, value in enumerate(values)
    ]
    return Sparkline(" ".join(points), " ".join([f"0,{HEIGHT}", *points, f"{WIDTH},{HEIGHT}"]))
