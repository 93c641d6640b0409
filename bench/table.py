"""The one table, as Markdown."""

from __future__ import annotations

from bench import names
from bench.contest import Figures
from bench.goals import FRESH_ONE, judge
from bench.load import SCENARIOS, Scenario

_ABOUT = """\
Keyed calls per second: the median of {rounds} rounds. Every round goes through all contestants of a store, for
{seconds:g} s each, so that all meet the same weather. In brackets: as a multiple of *two commits by hand* of one caller on
the same store, the median of the ratios of each round; two commits that are as durable are the least that claim and settle can cost.

* **Onceward**: `ledger.run` awaited by tasks of one event loop, `ledger.blocking.run` called from threads. The effect is
  irreversible, has a fingerprint and returns a small dict. It is counted: a fresh call ran it once, a replay never.
* **Onceward, a commit for each write**: the same, awaited, on a store that does not share batches.
* **By hand**: no library. Claim and settle are one durable statement each, a replay is one look.
* **One statement per call**: the same from 64 threads, which share the connections named and nothing else.
* **Peers**: released versions in an environment of their own, as they come: {peers}.
  DBOS: a workflow under the key, the effect as its step. DBOS leaves its SQLite file in rollback mode; the row below it
  shows it with the file switched to WAL by hand.
* **Round trips**: of a fresh and a replayed call, counted on the wire between client and server; for the embedded stores,
  calls of the store.
"""


def render(figures: Figures, machine: str, versions: dict[str, str], rounds: int, seconds: float) -> str:
    peers = ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) or "left out of this run"
    head = ["# What a keyed call costs", "", machine, "", _ABOUT.format(rounds=rounds, seconds=seconds, peers=peers)]
    notes: list[str] = []
    rows = [
        "| store | contestant | " + " | ".join(str(scenario) for scenario in SCENARIOS) + " | round trips |",
        "| --- | --- |" + " ---: |" * (len(SCENARIOS) + 1),
    ]
    for store, contestants in figures.stores.items():
        rows += [_row(figures, store, name, notes) for name in contestants]
    return "\n".join([*head, *rows, "", *_footnotes(notes), *_goals(figures), ""])


def _row(figures: Figures, store: str, name: str, notes: list[str]) -> str:
    cells = [_cell(figures, store, name, scenario, notes) for scenario in SCENARIOS]
    trips = figures.trips.get((store, name))
    shown = name if name not in {names.AWAITED, names.BLOCKING} else f"**{name}**"
    return f"| {store} | {shown} | " + " | ".join([*cells, f"{trips[0]:g} / {trips[1]:g}" if trips else ""]) + " |"


def _cell(figures: Figures, store: str, name: str, scenario: Scenario, notes: list[str]) -> str:
    reason = figures.unable.get((store, name, scenario))
    if reason is not None:
        if reason not in notes:
            notes.append(reason)
        return f"-[^{notes.index(reason) + 1}]"
    rate = figures.median(store, name, scenario)
    if rate is None:
        return ""
    ratio = figures.ratio(store, (name, scenario), (names.BY_HAND, FRESH_ONE))
    return f"{rate:,.0f}" if ratio is None else f"{rate:,.0f} ({ratio:.2f})"


def _footnotes(notes: list[str]) -> list[str]:
    lines = [f"[^{number}]: {note}" for number, note in enumerate(notes, 1)]
    return [*lines, ""] if lines else []


def _goals(figures: Figures) -> list[str]:
    rows = [f"| {goal.what} | {goal.wanted} | {goal.found or '-'} | {goal.verdict} |" for goal in judge(figures)]
    return ["| goal | wanted | this run | |", "| --- | ---: | ---: | --- |", *rows]
