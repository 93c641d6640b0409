"""Tables of the hub, and the verdicts on its goals."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.contest import Figures
from bench.goals import Goal, at_least, shown
from bench.hub.attachments import BY_HAND, OURS, Mode
from bench.hub.fanout import REPLAY
from bench.table import Notes, cell, goal_rows, heading

DELIVERIES_PER_SECOND = 30_000

_ABOUT = """\
* **Attachments** per second of one caller, in process: the median of {rounds} rounds of {seconds:g} s. In brackets: the ratio to
  the same rows written by hand on one connection, in one transaction, without checks, ids, pool or retries. A duplicate
  by hand reads one row and writes nothing, so its ratio shows the cost of the library itself.
* **Deliveries**: {clients} WebSocket clients at the live edge of one hub process on SQLite. An event counts when a client
  has received it. *Single*: one event per commit, as fast as they are committed. *Bulk*: 50 per commit. *Replay*: one
  client reads the whole log, in pages, from its first event.
* **Start**: the median time from the start of the process to "listening on".
"""


@dataclass(frozen=True, slots=True)
class HubFigures:
    """Measured figures, empty for parts that a run left out."""

    attachments: Figures
    deliveries: dict[str, float] = field(default_factory=dict)
    start: dict[str, float] = field(default_factory=dict)


def render(figures: HubFigures, *, rounds: int, seconds: float, clients: int) -> str:
    notes = Notes("u")
    rows = heading(["database", "who"], [f"{mode} attachment" for mode in Mode])
    for store, contestants in figures.attachments.stores.items():
        for name in contestants:
            cells = [cell(figures.attachments, store, (name, mode), (BY_HAND, mode), notes) for mode in Mode]
            rows.append(f"| {store} | {f'**{name}**' if name == OURS else name} | {' | '.join(cells)} |")
    others = heading(["what"], ["this run"])
    for name, rate in figures.deliveries.items():
        what = "events per second" if name == REPLAY else "deliveries per second"
        others.append(f"| {what}, {name} | {rate:,.0f} |")
    others += [f"| start, {name} | {took:.2f} s |" for name, took in figures.start.items()]
    about = _ABOUT.format(rounds=rounds, seconds=seconds, clients=clients)
    return "\n".join(
        ["# Cost of the hub", "", about, *rows, "", *others, "", *notes.lines(), *goal_rows(judge(figures)), ""]
    )


def judge(figures: HubFigures) -> list[Goal]:
    slowest = max(figures.start.values(), default=None)
    return [
        at_least(
            "deliveries per second, one event in each commit", figures.deliveries.get("single"), DELIVERIES_PER_SECOND
        ),
        at_least("starts per two seconds", None if slowest is None else 2 / slowest, 1),
        *(
            shown(
                f"{mode} attachment ÷ raw SQL in one transaction, {store}",
                figures.attachments.ratio(store, (OURS, mode), (BY_HAND, mode)),
            )
            for store in figures.attachments.stores
            for mode in Mode
        ),
    ]
