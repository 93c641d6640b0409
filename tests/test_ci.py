"""The CI matrix, the package's classifiers and the Makefile name the same versions of Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))


def matrix(job: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = WORKFLOW["jobs"][job]["strategy"]["matrix"]
    return found


def test_every_version_that_the_package_names_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert matrix("linux")["python"] == versions
    assert f"for version in {' '.join(versions)};" in makefile


def test_the_library_is_tested_on_the_other_systems() -> None:
    assert set(matrix("library")["os"]) == {"macos-latest", "windows-latest"}
    assert matrix("library")["python"] == matrix("linux")["python"]


def test_every_path_of_the_lanes_exists() -> None:
    for lane in ("fast", "library"):
        for line in (ROOT / "tests" / f"{lane}.txt").read_text("utf-8").split():
            assert (ROOT / line.removeprefix("--ignore=")).exists(), line
