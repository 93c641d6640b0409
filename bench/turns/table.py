"""The tables of turns. There are no goals for them: the figures are shown, and nothing is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import names
from bench.contest import Figures
from bench.goals import FRESH_ONE
from bench.load import Scenario
from bench.table import Notes, cell, heading, peers_text
from bench.turns import overhead, tools
from bench.turns.fanout import Followed

_TURNS = """\
Turns per second: a message is received, run by a brain that does nothing, and its answer recorded. A session sends its
next message when it has the answer to the last one. The median of {rounds} rounds of {turn_seconds:g} s. In brackets: as a
multiple of *two commits by hand* of one caller on the same database, measured in the same rounds.
"""
_TOOLS = """\
Calls per second of a tool that only counts, by one caller: the median of {rounds} rounds of {seconds:g} s. Behind each
figure: how many times as fast as that Onceward's idempotent tool is, the median of the ratios of each round. Runs are
counted: a fresh call ran the tool once, a replay never.

* **Onceward**: `toolbox.call`, awaited, one turn group. Every write is synced: on SQLite WAL and `synchronous=FULL`.
* **Peers**: {peers}; released versions in an environment of their own, with the durability that they come with.
* **DBOS step**: a workflow under the key, the tool as its step; a replay is the same workflow id again. Its SQLite file is
  in rollback mode and synced as well; the row below it shows it with the file switched to WAL.
* **LangGraph task**: an `@entrypoint` with a `@task`, a thread for each key. `durability="async"`, which writes checkpoints
  beside the run and has them all stored when it returns; on SQLite WAL and `synchronous=FULL`. The same input again would
  run the task again, so a replay is `invoke(None)` by a caller who knows that there was a call. *Thread resumed*: the
  thread was interrupted behind the task; the entrypoint runs again, gets the task's result from the checkpoint, and is
  interrupted again, which it writes. *Thread finished*: what the entrypoint returned is read, and nothing runs.
  Fresh calls of the two are the same; that they differ shows how much the figures do.
"""
_STREAMS = """\
One turn that says one delta after the other, each stored before it is sent, and clients that follow `/turns/{{id}}/events`
of one hub process from the first delta on. A delivery is a delta that a client has; every client got every delta once.
Seconds begin with the first delivery. The median of {stream_rounds} rounds.
"""


@dataclass(slots=True)
class TurnFigures:
    """What was measured, by database."""

    turns: Figures = field(default_factory=Figures.empty)
    tools: Figures = field(default_factory=Figures.empty)
    streams: dict[str, Sequence[Followed]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def render(figures: TurnFigures, *, rounds: int, seconds: float, turn_seconds: float, stream_rounds: int) -> str:
    notes = Notes("t")
    return "\n".join(
        [
            "## Turns",
            "",
            _TURNS.format(rounds=rounds, turn_seconds=turn_seconds),
            *_turn_rows(figures.turns, notes),
            "",
            _TOOLS.format(rounds=rounds, seconds=seconds, peers=peers_text(figures.versions)),
            *_tool_rows(figures.tools, notes),
            "",
            *notes.lines(),
            _STREAMS.format(stream_rounds=stream_rounds),
            *_stream_rows(figures.streams),
            "",
        ]
    )


def _turn_rows(figures: Figures, notes: Notes) -> list[str]:
    rows = heading(["database", "who"], [_sessions(scenario) for scenario in overhead.SCENARIOS])
    for store, contestants in figures.stores.items():
        for name in contestants:
            cells = [
                # By hand, one caller is all there is.
                cell(figures, store, (name, scenario), (names.BY_HAND, FRESH_ONE), notes)
                if name == names.TURNS or scenario == FRESH_ONE
                else ""
                for scenario in overhead.SCENARIOS
            ]
            rows.append(f"| {store} | {_shown(name)} | {' | '.join(cells)} |")
    return rows


def _sessions(scenario: Scenario) -> str:
    return "one session" if scenario.callers == 1 else f"{scenario.callers} sessions"


def _tool_rows(figures: Figures, notes: Notes) -> list[str]:
    columns = [text for scenario in tools.SCENARIOS for text in (str(scenario.mode), "Onceward ÷ it")]
    rows = heading(["database", "who"], columns)
    for store, contestants in figures.stores.items():
        for name in contestants:
            cells = [
                text for scenario in tools.SCENARIOS for text in _tool_cells(figures, store, name, scenario, notes)
            ]
            rows.append(f"| {store} | {_shown(name)} | {' | '.join(cells)} |")
    return rows


def _tool_cells(figures: Figures, store: str, name: str, scenario: Scenario, notes: Notes) -> tuple[str, str]:
    reason = figures.unable.get((store, name, scenario))
    if reason is not None:
        return notes.dash(reason), ""
    rate = figures.median(store, name, scenario)
    ratio = figures.ratio(store, (names.TOOL, scenario), (name, scenario))
    return "" if rate is None else f"{rate:,.0f}", "" if ratio is None else _ratio(ratio)


def _ratio(ratio: float) -> str:
    """A bare function is a thousand times as fast, which two decimals would not show."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"


def _stream_rows(streams: dict[str, Sequence[Followed]]) -> list[str]:
    columns = ["clients", "deltas", "deliveries per second", "the fastest has all", "the slowest has all"]
    rows = heading(["database"], columns)
    for store, followed in streams.items():
        rows += [
            f"| {store} | {row.clients} | {row.deltas} | {row.deliveries_per_second:,.0f} |"
            f" {row.fastest_seconds:.2f} s | {row.slowest_seconds:.2f} s |"
            for row in followed
        ]
    return rows


def _shown(name: str) -> str:
    return f"**{name}**" if name in {names.TURNS, names.TOOL} else name
