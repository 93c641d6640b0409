"""The trace benchmark: calls of all threads, functions of the package, and medians of the rounds."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.profiles import Function
from bench.traces import FUNCTIONS_SHOWN, main, render

_ROOT = Path(__file__).resolve().parents[2]
_THREADS = """
import threading
from bench.profiles import Profiles

def work(times):
    for _ in range(times):
        step()

def step():
    pass

def run(times):
    threads = [threading.Thread(target=work, args=(times,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    work(times)
    for thread in threads:
        thread.join()

profiles = Profiles()
run(100)
profiles.begin()
for times in [4] * 8 + [9] * 12:
    run(times)
    profiles.end()
print([function.calls for function in profiles.functions() if function.name == "step"])
"""


def test_a_short_run_prints_a_row_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--only", "once", "--seconds", "0.001"])

    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("| once |")]
    assert all(float(cell.strip(" %").replace(",", "")) > 0 for cell in row.split("|")[2:-1])
    assert sum(line.startswith("| `") for line in lines) == FUNCTIONS_SHOWN


def test_calls_of_all_threads_are_counted_at_the_lower_decile_of_requests() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], cwd=_ROOT, check=True, capture_output=True, text=True)

    assert done.stdout == "[12]\n"


def test_a_path_is_shown_with_the_median_of_its_rounds_and_its_functions() -> None:
    functions = [
        Function("", "outside", 1000, 6e-6),
        Function("a.py", "first", 2, 3e-6),
        Function("a.py", "second", 1, 1e-6),
    ]

    row, table = render("once", [(2e-3, 9e-4), (9e-3, 1e-3), (1e-3, 8e-4)], functions)

    assert row == "| once | 2,000 | 1,000 | 900 | 1,003 | 3 | 40% | 2 | 1 |"
    assert "| `a.py:first` | 2 | 3.0 |" in table
    assert not any("outside" in line for line in table)
