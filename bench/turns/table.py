"""Tables of turns. They have no goals and no verdicts."""

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
Turns per second: a message is received, a brain that does nothing runs, and its response is recorded. A session sends its
next message after the response to the last one. The median of {rounds} rounds of {turn_seconds:g} s. In brackets: the ratio to
*two commits by hand* of one caller on the same database, measured in the same rounds.
"""
_TOOLS = """\
Calls per second of a tool that only counts, with one caller: the median of {rounds} rounds of {seconds:g} s. *Onceward ÷ this*
is the rate of Onceward's idempotent tool divided by the rate of the row, as the median of the ratios of each round. Runs
are counted: each fresh call ran the tool once, and no replay ran it.

* **Onceward**: `toolbox.call`, awaited, one turn group. Every write is synced: on SQLite with WAL and `synchronous=FULL`.
* **Peers**: {peers}; released versions in a separate environment, with their default durability.
* **DBOS step**: a workflow with the key as its id, and the tool as its step. A replay calls the same workflow id again. Its
  SQLite file is in rollback mode and is synced as well. In the row *file set to WAL*, the file was switched to WAL.
* **LangGraph task**: an `@entrypoint` with a `@task`, and a thread for each key. `durability="async"` writes checkpoints
  during the run, and all are stored when it returns. SQLite uses WAL and `synchronous=FULL`. The same input would run the
  task again, so a replay is `invoke(None)` by a caller who knows about the earlier call. *Thread resumed*: the thread was
  interrupted after the task. The entrypoint runs again, gets the task's result from the checkpoint, and is interrupted
  again, which it writes. *Thread finished*: the result of the entrypoint is read, and nothing runs.
  Fresh calls of both rows do the same work, so the difference between them shows the noise of the figures.
"""
_STREAMS = """\
One turn sends one delta after the other, each stored before it is sent. Clients follow `/turns/{{id}}/events` of one hub
process from the first delta on. A delivery is a delta that a client has received; every client got every delta once.
Seconds start with the first delivery. The median of {stream_rounds} rounds.
"""


@dataclass(slots=True)
class TurnFigures:
    """Measured figures, by database."""

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
                # The baseline by hand has only one caller.
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
    columns = [text for scenario in tools.SCENARIOS for text in (str(scenario.mode), "Onceward ÷ this")]
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
    """Format a ratio. A bare function is a thousand times as fast, so small ratios need four decimals."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"


def _stream_rows(streams: dict[str, Sequence[Followed]]) -> list[str]:
    columns = ["clients", "deltas", "deliveries per second", "fastest client done", "slowest client done"]
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
