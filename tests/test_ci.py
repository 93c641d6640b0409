"""The CI matrix, the package's classifiers and the Makefile name the same versions of Python, and all test servers. A
release is published with the least rights.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.servers.redis import REDIS_SERVERS
from tests.servers.s3 import S3_SERVERS

ROOT = Path(__file__).parent.parent
RELEASE = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))


def matrix(job: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = WORKFLOW["jobs"][job]["strategy"]["matrix"]
    return found


def test_every_version_that_the_package_names_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    versions = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert matrix("linux")["python"] == versions
    assert f"PYTHONS ?= {' '.join(versions)}\n" in makefile


def test_the_tests_of_a_store_run_on_every_server() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")

    assert f"REDISES ?= {' '.join(REDIS_SERVERS)}\n" in makefile
    assert f"S3S ?= {' '.join(S3_SERVERS)}\n" in makefile
    assert WORKFLOW["jobs"]["backends"]["steps"][-1] == {"run": "make test-backends"}


def test_the_library_is_tested_on_the_other_systems() -> None:
    assert set(matrix("library")["os"]) == {"macos-latest", "windows-latest"}
    assert matrix("library")["python"] == matrix("linux")["python"]


def test_every_path_of_the_lanes_exists() -> None:
    for lane in ("fast", "library"):
        for line in (ROOT / "tests" / f"{lane}.txt").read_text("utf-8").split():
            assert (ROOT / line.removeprefix("--ignore=")).exists(), line


def test_a_release_uses_pinned_actions_and_one_job_may_ask_for_a_token() -> None:
    build, publish = RELEASE["jobs"]["build"], RELEASE["jobs"]["publish"]
    used = [step["uses"] for job in (build, publish) for step in job["steps"] if "uses" in step]

    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", one) for one in used)
    assert RELEASE["permissions"] == {}
    assert (build["permissions"], publish["permissions"]) == ({"contents": "read"}, {"id-token": "write"})
    assert publish["environment"] == "pypi"
    assert publish["needs"] == "build"
    # The job with the token runs nothing that the repository contains.
    assert all("run" not in step and "checkout" not in step["uses"] for step in publish["steps"])
    assert publish["steps"][-1]["with"] == {"attestations": True}


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("https://example.org/one/onceward", None),
        ("", "set repository to 'https://example.org/one/onceward', found ''"),
        ("https://example.org/two/onceward", "found 'https://example.org/two/onceward'"),
    ],
)
def test_a_release_is_refused_unless_its_package_names_its_repository(
    address: str, error: str | None, tmp_path: Path
) -> None:
    """The package page of a release cannot be changed: without an address, it would have no links forever."""
    step = next(s for s in RELEASE["jobs"]["build"]["steps"] if s.get("name", "").startswith("The project URLs"))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(
        re.sub(r'^repository = ".*"$', f'repository = "{address}"', project, flags=re.MULTILINE), "utf-8"
    )
    here = {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "one/onceward"}
    here["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    run = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=tmp_path,
        env=os.environ | here,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == (0 if error is None else 1)
    assert (error or "") in run.stderr


def test_a_release_runs_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(
        r"^ *make ([a-z-]+)$", "\n".join(s.get("run", "") for s in RELEASE["jobs"]["build"]["steps"]), re.MULTILINE
    )

    assert targets == ["test-wheel", "dist"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
