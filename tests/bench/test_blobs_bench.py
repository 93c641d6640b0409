"""The blob benchmark: verdicts follow from the figures. `test_bench_smoke.py` makes a tiny run of it."""

from __future__ import annotations

from bench.blobs.put import BY_HAND, FOLDER, OURS, WITH_ROWS, loads
from bench.blobs.table import BlobFigures, judge, render
from bench.blobs.transfer import Transferred


def test_goals_are_judged_by_the_rounds_and_the_largest_collection() -> None:
    large, one, many = loads(256 * 1024**2, 300)
    figures = BlobFigures()
    figures.puts.rates = {
        (FOLDER, OURS, large): [950.0, 95.0, 900.0],
        (FOLDER, BY_HAND, large): [1000.0, 100.0, 1000.0],
        (FOLDER, OURS, one): [800.0],
        (FOLDER, OURS, many): [1000.0, 100.0, 1000.0],
        (FOLDER, BY_HAND, many): [2000.0, 200.0, 2000.0],
        (FOLDER, WITH_ROWS, many): [400.0, 60.0, 600.0],
    }
    figures.hub = Transferred(2048, 400.0, 1000.0, 1000.0, {1: 200.0, 16: 250.0}, 0.5)
    figures.collected = {
        "SQLite": {1_000: 500.0, 10_000: 100.0, 1_000_000: 120.0},
        "PostgreSQL": {10_000: 100.0, 1_000_000: 160.0},
    }
    found = [(goal.what.partition(",")[0], goal.found, goal.verdict) for goal in judge(figures)]

    assert found == [
        ("durable put of 256 MiB ÷ by hand", "0.95", "reached"),
        ("small uploads of 16 clients", "0.60", "reached"),
        ("the same ÷ by hand", "0.30", ""),
        ("the same through HTTP ÷ the same files without a database", "0.25", ""),
        ("time for each collected blob at 10⁶ blobs ÷ at 10⁴", "1.20", "reached"),
        ("time for each collected blob at 10⁶ blobs ÷ at 10⁴", "1.60", "**not reached**"),
    ]
    assert "| 10³ blobs | 10⁴ | 10⁶ |" in render(figures, rounds=3)


def test_goals_of_skipped_measurements_are_shown_as_not_measured() -> None:
    verdicts = [goal.verdict for goal in judge(BlobFigures())]

    assert verdicts == ["not measured"] * 4
    assert "| durable put of 256 MiB ÷ by hand | ≥ 0.9 | - | not measured |" in render(BlobFigures(), rounds=1)
