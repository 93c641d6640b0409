"""The chart of the README: drawn from the saved tables, with the figures that they have."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from bench.chart import FOLDER, PANELS, draw, figures

RESULTS = (FOLDER / "results.md").read_text("utf-8")


def test_the_saved_chart_is_that_of_the_saved_tables() -> None:
    assert (FOLDER / "results.svg").read_text("utf-8") == draw(RESULTS)


def test_the_chart_shows_the_figures_of_its_rows() -> None:
    functions, routes, tools = (dict(figures(panel, RESULTS)) for panel in PANELS)
    drawn = ET.fromstring(draw(RESULTS))  # noqa: S314  # our own text
    labels = {element.text for element in drawn.iter() if element.tag.endswith("}text")}

    assert {"Onceward", "idemkit", "call4agents", "DBOS"} == functions.keys()
    assert {"no library", "Onceward", "asgi-idempotency-header"} < routes.keys()
    assert {"Onceward", "agent-once"} == tools.keys()
    assert {
        f"{value:,.0f}" for panel in (functions, routes, tools) for pair in panel.values() for value in pair
    } < labels


def test_a_run_without_a_row_of_the_chart_draws_none() -> None:
    without_peers = "\n".join(line for line in RESULTS.splitlines() if "idemkit" not in line)

    with pytest.raises(ValueError, match="no row 'PostgreSQL', 'idemkit'"):
        draw(without_peers)
    with pytest.raises(ValueError, match="no section '# Cost of a keyed call'"):
        draw("# Cost of the hub\n")
