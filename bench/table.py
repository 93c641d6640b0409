"""Markdown table of keyed calls, and helpers that the other tables share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from bench import names
from bench.contest import Figures
from bench.goals import FRESH_ONE, Goal, judge
from bench.load import SCENARIOS

_ABOUT = """\
Keyed calls per second: the median of {rounds} rounds. Each round measures all contestants of a store in turn, for
{seconds:g} s each, so that all run under the same conditions. In brackets: the ratio to *two commits by hand* of one caller on
the same store, as the median of the ratios of each round. Claim and settle cannot cost less than two equally durable commits.

* **Onceward**: `ledger.run` awaited by tasks of one event loop, `ledger.blocking.run` called from threads. The effect is
  irreversible, has a fingerprint and returns a small dict. Runs are counted: each fresh call ran it once, and no replay
  ran it.
* **Onceward, a commit for each write**: the same, awaited, on a store that does not share batches.
* **By hand**: no library. Claim and settle are one durable statement each, and a replay is one read. SQLite is measured in
  WAL mode, as in Onceward, and with the rollback journal, its default mode, both with `synchronous=FULL`. *The ledger's
  table*: the statements that Onceward runs, on its table with its columns and indexes, without the rest of Onceward.
* **Syncs slowed**: *Onceward, blocking* and *two commits by hand* in a process whose syncs are slowed until two commits by
  hand reach 800 calls per second.
* **One statement per call**: the same statements as by hand from 64 threads, which share only the connections.
* **Peers**: released versions in a separate environment, with their default settings: {peers}.
  DBOS: a workflow with the key as its id, and the effect as its step. DBOS leaves its SQLite file in rollback mode. In the
  row *file set to WAL*, the file was switched to WAL by hand.
* **Round trips** of a fresh and of a replayed call, counted between client and server. For embedded stores, calls of the
  store are counted.
"""


@dataclass(frozen=True, slots=True)
class Notes:
    """Footnotes with reasons, each listed once. Tables in one file need different marks."""

    mark: str = ""
    reasons: list[str] = field(default_factory=list)

    def dash(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"-[^{self.mark}{self.reasons.index(reason) + 1}]"

    def lines(self) -> list[str]:
        lines = [f"[^{self.mark}{number}]: {reason}" for number, reason in enumerate(self.reasons, 1)]
        return [*lines, ""] if lines else []


def render(figures: Figures, machine: str, versions: dict[str, str], rounds: int, seconds: float) -> str:
    about = _ABOUT.format(rounds=rounds, seconds=seconds, peers=peers_text(versions))
    head = ["# Cost of a keyed call", "", machine, "", about]
    notes = Notes()
    rows = heading(["store", "contestant"], [*map(str, SCENARIOS), "round trips"])
    for store, contestants in figures.stores.items():
        rows += [_row(figures, store, name, notes) for name in contestants]
    return "\n".join([*head, *rows, "", *notes.lines(), *goal_rows(judge(figures)), ""])


def _row(figures: Figures, store: str, name: str, notes: Notes) -> str:
    raw = (names.BY_HAND, FRESH_ONE)
    cells = [cell(figures, store, (name, scenario), raw, notes) for scenario in SCENARIOS]
    trips = figures.trips.get((store, name))
    shown = name if name not in {names.AWAITED, names.BLOCKING} else f"**{name}**"
    return f"| {store} | {shown} | " + " | ".join([*cells, f"{trips[0]:g} / {trips[1]:g}" if trips else ""]) + " |"


def heading(words: list[str], figures: list[str]) -> list[str]:
    """Return the first two lines of a table: columns of words, then columns of figures."""
    return [f"| {' | '.join([*words, *figures])} |", "|" + " --- |" * len(words) + " ---: |" * len(figures)]


def cell(figures: Figures, store: str, who: tuple[str, Hashable], compared: tuple[str, Hashable], notes: Notes) -> str:
    """Return a rate with its ratio to another in brackets, or a dash with a footnote if the contestant was unable."""
    reason = figures.unable.get((store, *who))
    if reason is not None:
        return notes.dash(reason)
    rate = figures.median(store, *who)
    if rate is None:
        return ""
    ratio = figures.ratio(store, who, compared)
    return f"{rate:,.0f}" if ratio is None else f"{rate:,.0f} ({ratio:.2f})"


def peers_text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) or "left out of this run"


def goal_rows(goals: list[Goal]) -> list[str]:
    rows = [f"| {goal.what} | {goal.wanted} | {goal.found or '-'} | {goal.verdict} |" for goal in goals]
    return ["| goal | wanted | this run | |", "| --- | ---: | ---: | --- |", *rows]
