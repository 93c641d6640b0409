"""The table of keyed calls, as Markdown, and the parts it shares with that of the middleware."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from bench import names
from bench.contest import Figures
from bench.goals import FRESH_ONE, Goal, judge
from bench.load import SCENARIOS

_ABOUT = """\
Keyed calls per second: the median of {rounds} rounds. Every round goes through all contestants of a store, for
{seconds:g} s each, so that all meet the same weather. In brackets: as a multiple of *two commits by hand* of one caller on
the same store, the median of the ratios of each round; two commits that are as durable are the least that claim and settle can cost.

* **Onceward**: `ledger.run` awaited by tasks of one event loop, `ledger.blocking.run` called from threads. The effect is
  irreversible, has a fingerprint and returns a small dict. It is counted: a fresh call ran it once, a replay never.
* **Onceward, a commit for each write**: the same, awaited, on a store that does not share batches.
* **By hand**: no library. Claim and settle are one durable statement each, a replay is one look. On SQLite in WAL mode, as
  ours are, and in the mode that SQLite has by itself, the rollback journal; both with `synchronous=FULL`. *The ledger's
  table*: the statements that Onceward makes there, with its columns and indexes, and nothing of Onceward around them.
* **Syncs slowed**: the same two in a process whose syncs take longer, until two commits by hand take what they do on a
  disk of 800 such calls a second.
* **One statement per call**: the same from 64 threads, which share the connections named and nothing else.
* **Peers**: released versions in an environment of their own, as they come: {peers}.
  DBOS: a workflow under the key, the effect as its step. DBOS leaves its SQLite file in rollback mode; the row below it
  shows it with the file switched to WAL by hand.
* **Round trips**: of a fresh and a replayed call, counted on the wire between client and server; for the embedded stores,
  calls of the store.
"""


@dataclass(frozen=True, slots=True)
class Notes:
    """Reasons as footnotes, each said once. Tables in one file need different marks."""

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
    head = ["# What a keyed call costs", "", machine, "", about]
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
    """The first two lines of a table: columns of words, then columns of figures."""
    return [f"| {' | '.join([*words, *figures])} |", "|" + " --- |" * len(words) + " ---: |" * len(figures)]


def cell(figures: Figures, store: str, who: tuple[str, Hashable], compared: tuple[str, Hashable], notes: Notes) -> str:
    """A rate, and in brackets its ratio to that of another; a dash with a footnote for whoever was unable."""
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
