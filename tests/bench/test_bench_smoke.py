"""Smoke test of the benchmarks: a tiny run prints the whole table, and the verdicts follow from the figures."""

import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from bench.__main__ import main
from bench.by_hand import LedgerLane
from bench.contest import Figures, Unable, compete
from bench.goals import FRESH_MANY, FRESH_ONE, REPLAY_ONE, Goal, judge
from bench.hub.rows import TITLES
from bench.load import SCENARIOS, Scenario
from bench.table import render

from bench import names
from onceward.core.claim import Ref, Status
from onceward.store.sqlite import SqliteStore


@pytest.mark.usefixtures("few_objects")
def test_a_quick_run_prints_and_saves_every_row_with_its_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--quick", "--out", str(tmp_path)])

    text = (tmp_path / "results.md").read_text("utf-8")
    assert text in capsys.readouterr().out
    for store, name in [
        ("memory", "**Onceward, awaited**"),
        ("memory", "**Onceward, blocking**"),
        ("SQLite FULL", "**Onceward, awaited**"),
        ("SQLite FULL", "**Onceward, blocking**"),
        ("SQLite FULL", "two commits by hand"),
        ("SQLite FULL", "two commits by hand, the ledger's table"),
        ("SQLite FULL", "two commits by hand, rollback journal"),
        ("SQLite FULL", "one statement per call, one connection"),
    ]:
        assert f"| {store} | {name} |" in text
    by_hand = next(line for line in text.splitlines() if "| two commits by hand |" in line)
    assert "(1.00)" in by_hand
    assert "| round trips, SQLite FULL, fresh / replay | 2 / 1 | 2 / 1 | reached |" in text
    assert "| fresh, SQLite, one caller ÷ DBOS | ≥ 5 | - | not measured |" in text
    assert not _goal_in(text, "fresh, SQLite, one caller ÷ two commits by hand").endswith("| not measured |")
    slowed = _goal_in(text, "fresh, one caller ÷ two commits by hand, syncs slowed until by hand reaches")
    assert slowed.endswith("| not measured |") is (shutil.which("cc") is None)
    assert not _goal_in(text, "fresh, SQLite, 64 callers ÷ one caller").endswith("| not measured |")
    for name in ["FastAPI, the route alone", "ASGI function, alone"]:
        assert _cells(text, name).count("(1.00)") == 4
    for name in ["**FastAPI, Onceward**", "**ASGI function, Onceward**", "ASGI function, a dict by hand"]:
        assert "-[^" not in _cells(text, name)
    assert "| fresh ÷ the fastest peer, SQLite FULL | ≥ 1 | - | not measured |" in text
    for name in ["**Onceward, an empty brain**", "**Onceward, an idempotent tool**"]:
        assert "-[^" not in _cells(text, name)
    for framework in ["async function", "LangChain", "pydantic-ai", "OpenAI Agents"]:
        assert re.search(rf"\| {framework} \| \*\*Onceward\*\* \| [\d,]+ \| -?[\d,]+ \| [\d,]+ \| -?[\d,]+ \|", text)
    assert "| SQLite FULL | 3 | 10 |" in text
    for route in [*TITLES.values(), "GET"]:
        assert re.search(rf"\| SQLite FULL \| [^|]+ \| {re.escape(route)} \| [\d,]+ \|", text)
    assert not _goal_in(text, "topic attachment, new ÷ bare route, SQLite FULL").endswith("| not measured |")
    assert not _goal_in(text, "memory after many requests ÷ before, SQLite FULL").endswith("| not measured |")
    assert (
        text.index("# Cost of the hub")
        < text.index("# The hub under load")
        < text.index("# Cost of blobs")
        < text.index("## Ingest")
    )
    for what in ["one thread", "16 threads"]:
        assert text.count(f"| blobs of 4 KiB, {what}, puts/s |") == 2
    for what in [
        "one blob of 1 MiB, MB/s",
        "upload of 2 MiB",
        "download, second half by Range",
        "uploads of 4 KiB, 16 clients, a new connection each",
        "growth of the hub's memory while 2 MiB are uploaded",
    ]:
        assert f"\n| {what} | " in text
    assert "| collection, µs for each collected blob | 20 blobs | 40 |" in text
    for what in ["small uploads of 16 clients, with rows", "time for each collected blob at 40 blobs ÷ at 20, SQLite"]:
        assert not _goal_in(text, what).endswith("| not measured |")


def test_the_handwritten_statements_write_what_the_ledger_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    lane = LedgerLane(url)
    lane.claim("k")
    lane.settle("k")
    lane.close()

    with closing(SqliteStore(tmp_path / "ledger.db")) as store:
        (entry,) = store.read([Ref("onceward:call", "k")]).entries
    assert entry is not None
    assert entry.status is Status.COMPLETED


def test_a_goal_is_judged_by_the_median_of_the_ratios_of_each_round() -> None:
    figures = Figures.empty()
    figures.rates = {
        # The machine slows down tenfold in the second round; the ratios do not.
        (names.SQLITE, names.BY_HAND, FRESH_ONE): [2000.0, 200.0, 2000.0],
        (names.SQLITE, names.BY_HAND_ROLLBACK, FRESH_ONE): [1000.0, 100.0, 1000.0],
        (names.SQLITE, names.BLOCKING, FRESH_ONE): [850.0, 85.0, 700.0],
        (names.SQLITE_SLOW, names.BY_HAND, FRESH_ONE): [800.0, 80.0, 800.0],
        (names.SQLITE_SLOW, names.BLOCKING, FRESH_ONE): [600.0, 68.0, 600.0],
        (names.SQLITE, names.BLOCKING, REPLAY_ONE): [6000.0, 600.0, 6000.0],
        (names.SQLITE, names.AWAITED, FRESH_ONE): [800.0, 80.0, 800.0],
        (names.SQLITE, names.AWAITED, FRESH_MANY): [4000.0, 400.0, 4000.0],
    }

    goals = judge(figures)

    assert _verdict(goals, "fresh, SQLite, one caller ÷ two commits by hand, SQLite's default mode (1,000/s)") == (
        "0.85",
        "reached",
    )
    assert _verdict(goals, "the same ÷ two commits by hand in WAL mode, as in Onceward (2,000/s)") == ("0.42", "")
    assert _verdict(goals, "fresh, one caller ÷ two commits by hand, syncs slowed until by hand reaches 800/s") == (
        "0.75",
        "",
    )
    assert _verdict(goals, "fresh, SQLite, 64 callers ÷ one caller") == ("5.00", "reached")
    assert _verdict(goals, "replays per second, SQLite, one caller") == ("6,000", "reached")
    assert _verdict(goals, "fresh, SQLite, one caller ÷ DBOS") == (None, "not measured")


def test_a_contestant_that_cannot_do_something_gets_a_dash_and_a_footnote() -> None:
    figures = compete("memory", [Limping()], rounds=2, seconds=0.0, report=lambda _: None)

    text = render(figures, "A machine.", {}, rounds=2, seconds=0.0)

    assert "| memory | limping | 7 | -[^1] | 7 | -[^1] |  |" in text
    assert "[^1]: It walks alone." in text


class Limping:
    name = "limping"

    def warm(self) -> None: ...

    def rate(self, scenario: Scenario, seconds: float) -> float:
        assert scenario in SCENARIOS
        if scenario.callers > 1:
            raise Unable("It walks alone.")
        return 7.0 + seconds

    def close(self) -> None: ...


def _verdict(goals: list[Goal], what: str) -> tuple[str | None, str]:
    goal = next(goal for goal in goals if goal.what.startswith(what))
    return goal.found, goal.verdict


def _goal_in(text: str, what: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {what}"))


def _cells(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| SQLite FULL | {name} |"))
