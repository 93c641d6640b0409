"""Table of agent frameworks. It has no goals and no verdicts."""

from __future__ import annotations

import importlib.metadata
import statistics

from bench import names
from bench.agents.contestants import FRAMEWORKS, SCENARIOS, who
from bench.contest import Figures
from bench.load import Scenario
from bench.table import Notes, heading, peers_text

_FRESH, _REPLAY = SCENARIOS
_PACKAGES = ("langchain", "langgraph", "pydantic-ai-slim", "openai-agents")
_ABOUT = """\
Microseconds per call of a tool that only counts, with one caller: the median of {rounds} rounds of {seconds:g} s. *Added* is the
time above that of the tool alone in the same framework, as the median of the differences of each round. Runs are counted:
each fresh call ran the tool once, and no replay ran it.

* **Frameworks**: {frameworks}. A call begins where a model has answered: with the tool call's JSON arguments, in a graph
  with a `ToolNode`, a toolset, or a `FunctionTool`.
* **Onceward**: an irreversible tool, on SQLite with WAL and `synchronous=FULL`. The model sees the envelope.
* **agent-once**: {peers}; its decorator in a separate environment and process, on its own SQLite store, which uses WAL
  and `synchronous=FULL`, too. The model sees the bare result.
"""


def render(figures: Figures, versions: dict[str, str], *, rounds: int, seconds: float) -> str:
    """Return the table as Markdown."""
    notes = Notes("a")
    rows = heading(["framework", "who"], ["fresh", "added", "replay", "added"])
    for framework in FRAMEWORKS:
        for library in (names.TOOL_ALONE, names.ONCEWARD, names.AGENT_ONCE):
            if who(framework, library) in figures.stores[names.SQLITE]:
                cells = [
                    text for scenario in SCENARIOS for text in _cells(figures, framework, library, scenario, notes)
                ]
                shown = f"**{library}**" if library == names.ONCEWARD else library
                rows.append(f"| {framework} | {shown} | {' | '.join(cells)} |")
    used = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in _PACKAGES)
    about = _ABOUT.format(rounds=rounds, seconds=seconds, frameworks=used, peers=peers_text(versions))
    return "\n".join(["## Agent frameworks", "", about, *rows, "", *notes.lines()])


def _cells(figures: Figures, framework: str, library: str, scenario: Scenario, notes: Notes) -> tuple[str, str]:
    key = (names.SQLITE, who(framework, library), scenario)
    reason = figures.unable.get(key)
    if reason is not None:
        return ("", "") if library == names.TOOL_ALONE else (notes.dash(reason), "")
    took = [1e6 / rate for rate in figures.rates[key]]
    alone = [1e6 / rate for rate in figures.rates[names.SQLITE, who(framework, names.TOOL_ALONE), _FRESH]]
    added = statistics.median(one - bare for one, bare in zip(took, alone, strict=True))
    return f"{statistics.median(took):,.0f}", "" if library == names.TOOL_ALONE else f"{added:,.0f}"
