"""Tables of ingest, and the verdicts on their goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.goals import Goal, at_least
from bench.ingest.insert import CHUNK, Run

_ABOUT = (
    f"Entries per second over all chunks, checkpoints included. Ready payloads are inserted in chunks of {CHUNK}, one commit"
    " per chunk, with events. Raw is one multi-row `INSERT … ON CONFLICT DO NOTHING` of the same rows into a separate"
    " database, without events."
)


@dataclass(slots=True)
class IngestFigures:
    """Measured figures, by database except for normalizing."""

    normalized: Mapping[str, float] = field(default_factory=dict)
    first: dict[str, Run] = field(default_factory=dict)
    again: dict[str, Run] = field(default_factory=dict)
    archives: dict[str, Mapping[str, float]] = field(default_factory=dict)
    growth: dict[str, Mapping[int, float]] = field(default_factory=dict)


def judge(figures: IngestFigures) -> list[Goal]:
    goals = []
    for store, first in figures.first.items():
        again = figures.again[store]
        goals += [
            at_least(f"first run, {store} ÷ raw multi-row INSERT", first.rate / first.raw_rate, 0.6),
            at_least(f"run again, {store} ÷ first run", again.rate / first.rate, 1.0),
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
        for run in (first, figures.again[store]):
            cells += [f"{run.rate:,.0f}", f"{run.raw_rate:,.0f}", f"{run.rate / run.raw_rate:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| what | per second |", "| --- | --- |"]
    lines += [f"| normalizing {name} | {rate:,.0f} |" for name, rate in figures.normalized.items()]
    for store, rates_of in figures.archives.items():
        lines += [f"| whole backfill of {name}, {store} | {rate:,.0f} |" for name, rate in rates_of.items()]
    for store, sizes in figures.growth.items():
        lines += [f"| new entries in a table of {size:,}, {store} | {rate:,.0f} |" for size, rate in sizes.items()]
    lines += ["", "| goal | wanted | found | |", "| --- | --- | --- | --- |"]
    lines += [f"| {goal.what} | {goal.wanted} | {goal.found} | {goal.verdict} |" for goal in judge(figures)]
    return "\n".join(lines) + "\n"
