"""The tables of ingest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.goals import Goal, at_least
from bench.ingest.insert import CHUNK, Rates

_ABOUT = (
    f"Ready payloads in chunks of {CHUNK}, each one commit, events included; raw is one multi-row"
    " `INSERT … ON CONFLICT DO NOTHING` of the same rows, without events. Entries per second, medians."
)


@dataclass(slots=True)
class IngestFigures:
    """What was measured, by database where it matters."""

    normalized: Mapping[str, float] = field(default_factory=dict)
    first: dict[str, Rates] = field(default_factory=dict)
    again: dict[str, Rates] = field(default_factory=dict)
    archives: dict[str, Mapping[str, float]] = field(default_factory=dict)
    growth: dict[str, Mapping[int, float]] = field(default_factory=dict)


def _ratio(rates: Rates) -> float:
    """Of chunks that followed each other: the machine's mood is the same for both."""
    return statistics.median(ours / raw for ours, raw in zip(rates.ours, rates.raw, strict=True))


def judge(figures: IngestFigures) -> list[Goal]:
    goals = []
    for store, first in figures.first.items():
        again = figures.again[store]
        goals += [
            at_least(f"first run, {store} ÷ raw multi-row INSERT", _ratio(first), 0.6),
            at_least(
                f"run again, {store} ÷ first run", statistics.median(again.ours) / statistics.median(first.ours), 1.0
            ),
        ]
    return goals


def render(figures: IngestFigures) -> str:
    lines = [
        "## Ingest",
        "",
        _ABOUT,
        "",
        "| database | first run | raw | ratio | again | raw again | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for store, first in figures.first.items():
        cells = [store]
        for rates in (first, figures.again[store]):
            cells += [f"{statistics.median(each):,.0f}" for each in (rates.ours, rates.raw)]
            cells.append(f"{_ratio(rates):.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| what | per second |", "| --- | --- |"]
    lines += [f"| normalizing {name} | {rate:,.0f} |" for name, rate in figures.normalized.items()]
    for store, rates_of in figures.archives.items():
        lines += [f"| whole backfill of {name}, {store} | {rate:,.0f} |" for name, rate in rates_of.items()]
    for store, sizes in figures.growth.items():
        lines += [f"| new entries beside {size:,} others, {store} | {rate:,.0f} |" for size, rate in sizes.items()]
    lines += ["", "| goal | wanted | found | |", "| --- | --- | --- | --- |"]
    lines += [f"| {goal.what} | {goal.wanted} | {goal.found} | {goal.verdict} |" for goal in judge(figures)]
    return "\n".join(lines) + "\n"
