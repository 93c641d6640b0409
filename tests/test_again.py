"""The rerun of failed tests in CI: which tests are rerun, and how its result is used."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.again import AGAIN_MAX, ENDED, LAST_FAILED, refusal

ROOT = Path(__file__).parents[1]


def test_a_few_failures_are_rerun() -> None:
    assert refusal(1, ["tests/hub/routes/test_chat.py::test_one[a/faults/b]"] * AGAIN_MAX) is None


@pytest.mark.parametrize(
    ("ended", "failed", "why"),
    [
        (1, [], "came before the tests"),
        (None, ["tests/test_a.py::test_one"], "came before the tests"),
        (3, ["tests/test_a.py::test_one"], "broke off"),
        (1, ["tests/test_a.py::test_one"] * (AGAIN_MAX + 1), "at most"),
        (1, ["tests/test_a.py::test_one", "tests/faults/hub/test_killed_workers.py::test_two"], "a promise was broken"),
        (1, ["tests/simulation/test_simulation.py::test_one"], "a promise was broken"),
        *(
            (1, [f"tests/{folder}/test_one.py::test_one"], "a promise was broken")
            for folder in ("store", "hub/db", "hub/events", "http/keyed", "hub/turns/model", "hub/tasks")
        ),
    ],
    ids=[
        "none",
        "of-an-earlier-run",
        "broken-off",
        "many",
        "under-fire",
        "simulated",
        "store",
        "db",
        "events",
        "http",
        "turns",
        "tasks",
    ],
)
def test_other_failures_are_not_rerun(ended: int | None, failed: Sequence[str], why: str) -> None:
    assert why in str(refusal(ended, failed))


def test_the_result_of_a_run_is_saved_for_the_rerun(tmp_path: Path) -> None:
    """xdist's controller saves it, after its workers have ended."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_sessionfinish\n", "utf-8")
    (tmp_path / "test_luck.py").write_text("def test_luck():\n    assert False\n", "utf-8")

    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2"]
    alone = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, check=False)

    assert run.returncode == json.loads((tmp_path / ENDED).read_text("utf-8")) == 1
    assert list(json.loads((tmp_path / LAST_FAILED).read_text("utf-8"))) == ["test_luck.py::test_luck"]


@pytest.mark.parametrize(("body", "ended"), [("pass", 0), ("assert False", 1)], ids=["luck", "broken"])
def test_the_rerun_is_green_and_names_the_tests_if_they_pass_alone(tmp_path: Path, body: str, ended: int) -> None:
    (tmp_path / "test_luck.py").write_text(f"def test_luck():\n    {body}\n", "utf-8")
    cache = tmp_path / LAST_FAILED
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"test_luck.py::test_luck": True}), "utf-8")
    (tmp_path / ENDED).parent.mkdir()
    (tmp_path / ENDED).write_text("1", "utf-8")

    run = subprocess.run(
        [sys.executable, "-m", "tests.again"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == ended, run.stdout + run.stderr
    assert ("HANGS ON LUCK, find out why: test_luck.py::test_luck" in run.stdout) is (ended == 0)
