"""Bar chart of the figures as plain SVG: one band for each store, one column for each scenario."""

from __future__ import annotations

from xml.sax.saxutils import escape

from bench import names
from bench.contest import Figures
from bench.load import SCENARIOS, Scenario

_LABEL_WIDTH = 270
_COLUMN_WIDTH = 220
_BAR_WIDTH = 140
_ROW_HEIGHT = 22
_BAND_GAP = 46
_TOP = 74
_FONT = 'font-family="system-ui, sans-serif" role="img"'
_OURS, _RAW, _PEER = "#1f6feb", "#8b949e", "#d29922"
_INK, _FAINT, _GROUND = "#1f2328", "#656d76", "#ffffff"


def draw(figures: Figures) -> str:
    """Return the chart as SVG. Bars of one store and scenario share a scale; their labels are calls per second."""
    bands = {store: _measured(figures, store, rows) for store, rows in figures.stores.items()}
    width = _LABEL_WIDTH + _COLUMN_WIDTH * len(SCENARIOS)
    height = _TOP + sum(_BAND_GAP + _ROW_HEIGHT * len(rows) for rows in bands.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {_FONT}>',
        "<title>Keyed calls per second</title>",
        f'<rect width="{width}" height="{height}" fill="{_GROUND}"/>',
        _text(16, 28, "Keyed calls per second (more is better)", size=17, weight=600),
        *_legend(),
    ]
    top = _TOP
    for store, rows in bands.items():
        parts += _band(figures, store, rows, top)
        top += _BAND_GAP + _ROW_HEIGHT * len(rows)
    return "\n".join([*parts, "</svg>", ""])


def _measured(figures: Figures, store: str, rows: list[str]) -> list[str]:
    """Return the contestants with at least one figure. The table also lists the others, with the reason."""
    return [name for name in rows if any(figures.median(store, name, scenario) for scenario in SCENARIOS)]


def _legend() -> list[str]:
    parts, left = [], 16
    for color, what in ((_OURS, "Onceward"), (_RAW, "without a library"), (_PEER, "peers")):
        parts.append(f'<rect x="{left}" y="42" width="11" height="11" fill="{color}"/>')
        parts.append(_text(left + 17, 52, what, color=_FAINT))
        left += 150
    return parts


def _band(figures: Figures, store: str, rows: list[str], top: int) -> list[str]:
    parts = [_text(16, top + 20, store, size=14, weight=600)]
    for column, scenario in enumerate(SCENARIOS):
        parts.append(_text(_LABEL_WIDTH + column * _COLUMN_WIDTH, top + 20, str(scenario), color=_FAINT))
    for number, name in enumerate(rows):
        parts.append(_text(16, top + 44 + number * _ROW_HEIGHT, name))
    for column, scenario in enumerate(SCENARIOS):
        left = _LABEL_WIDTH + column * _COLUMN_WIDTH
        parts += _column(figures, store, rows, scenario, left, top + 32)
    return parts


def _column(figures: Figures, store: str, rows: list[str], scenario: Scenario, left: int, top: int) -> list[str]:
    rates = [figures.median(store, name, scenario) for name in rows]
    most = max((rate for rate in rates if rate is not None), default=0.0)
    parts: list[str] = []
    for number, (name, rate) in enumerate(zip(rows, rates, strict=True)):
        y = top + number * _ROW_HEIGHT
        if rate is None:
            parts.append(_text(left, y + 12, "-", color=_FAINT))
            continue
        length = max(1.0, rate / most * _BAR_WIDTH)
        parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="15" rx="2" fill="{_color(name)}"/>')
        parts.append(_text(left + int(length) + 6, y + 12, f"{rate:,.0f}"))
    return parts


def _color(name: str) -> str:
    if name in {names.AWAITED, names.BLOCKING}:
        return _OURS
    return _RAW if name in {names.UNSHARED, *names.ALL_BY_HAND, names.ONE_EACH, names.ONE_EACH_POOLED} else _PEER


def _text(x: int, y: int, text: str, *, size: int = 12, weight: int = 400, color: str = _INK) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color}">{escape(text)}</text>'
