"""The chart of the README as plain SVG, drawn from the saved tables: `python -m bench.chart` draws it again.

It shows what a newcomer compares, each with a new key and with a replay: calls of a function on PostgreSQL, requests to
FastAPI on Redis, and tool calls on SQLite. All other rows are in results.md alone. It is narrow, so that its text can be
read on a phone, and has colours for light and dark pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from bench import names

FOLDER = Path(__file__).parent
_WIDTH = 480
_MARGIN = 12
_COLUMNS = (190, 336)
_BAR_WIDTH = 80
_ROW_HEIGHT = 24
_HEAD_HEIGHT = 66
_FOOT_HEIGHT = 34
_STYLE = """\
  rect.page { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif }
  .faint { fill: #59636e } text.title { font-size: 15px; font-weight: 600 }
  .ours { fill: #1f6feb } .bare { fill: #8b949e } .peer { fill: #bf8700 }
  text.own { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    rect.page { fill: #0d1117 } text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .ours { fill: #4493f8 } .bare { fill: #656d76 } .peer { fill: #d29922 }
  }"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One comparison: rows of a table of results.md, with the figures of two of its columns."""

    title: str
    about: str
    heads: tuple[str, str]
    section: str
    first: str
    columns: tuple[int, int]
    # The second cell of each row in the table, and its name in the chart.
    rows: tuple[tuple[str, str], ...]


PANELS = (
    Panel(
        "A function with a key",
        "Calls per second of 64 callers on PostgreSQL. More is better.",
        ("new key", "replay"),
        "# Cost of a keyed call",
        names.POSTGRES,
        (1, 3),
        ((names.AWAITED, "Onceward"), *((name, name) for name in (names.IDEMKIT, names.CALL4AGENTS, names.DBOS))),
    ),
    Panel(
        "A FastAPI route with the middleware",
        "Requests per second on Redis (AOF everysec). More is better.",
        ("new key", "replay"),
        "# Cost of the middleware",
        names.REDIS_EVERYSEC,
        (0, 1),
        (
            (names.BARE, "no library"),
            (names.MIDDLEWARE, "Onceward"),
            *(
                (name, name.removeprefix("FastAPI, "))
                for name in (names.HTTP_IDEMGATE, names.HTTP_IDEMKIT, names.HTTP_POWERTOOLS, names.HTTP_HEADER)
            ),
        ),
    ),
    Panel(
        "A tool of an agent",
        "Microseconds per call on SQLite, one caller. Less is better.",
        ("new key", "replay"),
        "## Agent frameworks",
        names.NO_FRAMEWORK,
        (0, 2),
        ((names.ONCEWARD, "Onceward"), (names.AGENT_ONCE, "agent-once")),
    ),
)


def draw(results: str) -> str:
    """Return the chart of a text like results.md. Each column of a panel has a scale of its own; bars begin at zero."""
    parts: list[str] = []
    top = _MARGIN
    for panel in PANELS:
        parts += _panel(panel, results, top)
        top += _HEAD_HEIGHT + _ROW_HEIGHT * len(panel.rows) + _MARGIN
    height = top + _FOOT_HEIGHT - _MARGIN
    machine = results.splitlines()[2].partition(", SQLite")[0]
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
        "<title>Speed of Onceward and other libraries</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" rx="6"/>',
    ]
    foot = _text(_MARGIN, height - _MARGIN, f"{machine}. All figures: bench/results.md", "faint")
    return "\n".join([*head, *parts, foot, "</svg>", ""])


def figures(panel: Panel, results: str) -> Iterator[tuple[str, list[float]]]:
    """Read the rows of a panel from the tables of results.md."""
    found = re.search(rf"^{re.escape(panel.section)}$(.*?)(?=^#+ |\Z)", results, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"the results have no section {panel.section!r}; measure that part, then draw the chart")
    table = [
        [cell.strip(" *") for cell in line.strip("|").split("|")] for line in found[1].splitlines() if line[:1] == "|"
    ]
    for name, shown in panel.rows:
        cells = next((row[2:] for row in table if row[:2] == [panel.first, name]), None)
        if cells is None:
            raise ValueError(
                f"{panel.section!r} has no row {panel.first!r}, {name!r}; measure with the peers installed"
            )
        yield shown, [float(cells[column].partition(" ")[0].replace(",", "")) for column in panel.columns]


def _panel(panel: Panel, results: str, top: int) -> Iterator[str]:
    yield _text(_MARGIN, top + 16, panel.title, "title")
    yield _text(_MARGIN, top + 36, panel.about, "faint")
    rows = list(figures(panel, results))
    most = [max(values[column] for _, values in rows) for column in (0, 1)]
    for left, head in zip(_COLUMNS, panel.heads, strict=True):
        yield _text(left, top + 58, head, "faint")
    for number, (shown, values) in enumerate(rows):
        y = top + _HEAD_HEIGHT + number * _ROW_HEIGHT
        kind = {"Onceward": "ours", "no library": "bare"}.get(shown, "peer")
        yield _text(_MARGIN, y + 14, shown, "own" if kind == "ours" else "")
        for left, value, longest in zip(_COLUMNS, values, most, strict=True):
            length = max(1.0, value / longest * _BAR_WIDTH)
            yield f'<rect class="{kind}" x="{left}" y="{y + 2}" width="{length:.1f}" height="15" rx="2"/>'
            yield _text(left + int(length) + 6, y + 14, f"{value:,.0f}", "own" if kind == "ours" else "")


def _text(x: int, y: int, text: str, kind: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{attribute}>{escape(text)}</text>'


if __name__ == "__main__":
    (FOLDER / "results.svg").write_text(draw((FOLDER / "results.md").read_text("utf-8")), "utf-8")
