"""The groups of `pytest --dist loadgroup`: tests that share a module's fixture run on one worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_HOOKS = "from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n"

_MODULE = """
import pathlib
import pytest

@pytest.fixture(scope="module")
def server():
    with (pathlib.Path(__file__).parent / "starts.txt").open("a") as starts:
        starts.write(f"{__name__}\\n")

@pytest.mark.parametrize("number", range(6))
def test_server(server, number):
    pass
"""


def test_each_module_fixture_is_set_up_once_by_all_workers_together(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(_HOOKS)
    for name in ("test_one.py", "test_two.py", "test_three.py"):
        (tmp_path / name).write_text(_MODULE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadgroup", str(tmp_path)]
    alone = {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | alone, capture_output=True, text=True, check=False, timeout=60
    )
    assert "18 passed" in ended.stdout, ended.stdout + ended.stderr
    assert sorted((tmp_path / "starts.txt").read_text().split()) == ["test_one", "test_three", "test_two"]


def test_a_run_without_xdist_knows_the_mark_of_a_group() -> None:
    # The library's own requirements do not include xdist, and unknown marks are errors.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--collect-only", "tests/test_check_links.py"]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
