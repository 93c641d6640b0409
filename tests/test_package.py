"""The built wheel and sdist: the same bytes from any folder, everything that the package needs, and a quick import.

`make test-wheel` runs the library's tests on the installed wheel.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from hatch_build import package_page, urls
from tests.markdown import LINK, blocks

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "onceward"
IMPORT_SECONDS_MAX = 0.1
# It is 1.9 to 2.1. The standard library's part takes 40 ms on a machine for which the promise is meant.
STANDARD_LIBRARY_TIMES_MAX = 2.5
# Folders that the make targets create. `.cache` is that of `make docs`.
LEFT_BEHIND = (".cache", ".venv", ".venv-docs", ".hypothesis", ".mypy_cache", ".ruff_cache", "build", "dist")


def build(project: Path, into: Path, *, umask: int) -> dict[str, Path]:
    """Build a folder as `make dist` does. Return the wheel and the sdist by their suffix."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(into)]
    done = subprocess.run(
        command, cwd=project, env=environment, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {file.suffix: file for file in into.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return build(ROOT, tmp_path_factory.mktemp("built"), umask=0o022)


@pytest.fixture(scope="module")
def installed(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and its dependencies, and no other package."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(built[".whl"]) as wheel:
        wheel.extractall(folder)  # noqa: S202  # our own wheel
    for name in required(metadata_of(built[".whl"])):
        for file in importlib.metadata.files(name) or []:
            target = folder / file
            if target.is_relative_to(folder) and file.suffix == ".py":
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), target)
    return folder


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def required(metadata: Message) -> list[str]:
    """The names of the packages that the package always needs."""
    needs = metadata.get_all("Requires-Dist") or []
    return sorted(need.partition(">")[0] for need in needs if "extra ==" not in need)


def test_a_build_from_the_unpacked_sdist_gives_the_same_bytes(built: dict[str, Path], tmp_path: Path) -> None:
    """Other folder, other times and permissions of the files, and what the make targets leave behind.

    The name of the folder is one that .gitignore lists: hatchling then ignores all of that file.
    """
    with tarfile.open(built[".gz"]) as sdist:
        sdist.extractall(tmp_path / "build", filter="data")
    (unpacked,) = (tmp_path / "build").iterdir()
    for file in unpacked.rglob("*"):
        if file.is_file():
            os.utime(file, (1_000_000_000, 1_000_000_000))
    for name in LEFT_BEHIND:
        (unpacked / name).mkdir()
        (unpacked / name / "left").touch()

    again = build(unpacked, tmp_path / "again", umask=0o077)

    assert {suffix: file.name for suffix, file in again.items()} == {s: file.name for s, file in built.items()}
    for suffix, file in built.items():
        assert again[suffix].read_bytes() == file.read_bytes(), suffix


def test_the_sdist_leaves_out_what_git_ignores() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    ignored = {line for line in lines if line and not line.startswith("#")}

    assert ignored <= set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"])


def test_the_wheel_has_every_file_of_the_package(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built[".whl"]) as wheel:
        packed = {name for name in wheel.namelist() if not name.startswith("onceward-")}
    files = {
        file.relative_to(SOURCE.parent).as_posix()
        for file in SOURCE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }

    assert packed == files
    assert {"onceward/py.typed", "onceward/store/redis/commit.lua", "onceward/store/postgres/commit.sql"} <= packed


def test_the_sdist_has_what_its_own_tests_need(built: dict[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}

    wanted = [
        "Makefile",
        "docs/reference.md",
        "requirements/dev.txt",
        "tests/test_package.py",
        "examples/quickstart.py",
    ]
    assert set(wanted) <= names
    assert not any(name.startswith((".git/", ".venv", ".ci/", "dist/", "build/")) for name in names)


def test_the_metadata_names_two_dependencies_the_licence_and_the_readme(built: dict[str, Path]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    metadata = metadata_of(built[".whl"])

    assert required(metadata) == ["multipart", "rfc8785"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Summary"] == project["description"]
    assert set(metadata.get_all("Provides-Extra") or []) == set(project["optional-dependencies"])


def test_the_package_page_has_no_relative_link(built: dict[str, Path]) -> None:
    """A relative link leads nowhere on a package page, and the project has no public address yet."""
    readme = (ROOT / "README.md").read_text("utf-8")
    metadata = metadata_of(built[".whl"])
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    page = payload.decode()
    links = LINK.findall(page)

    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_all("Project-URL") is None
    assert links == [link for link in LINK.findall(readme) if link.startswith("https://")]
    assert links
    assert page.startswith("# Onceward")
    assert all(block.text in page for block in blocks(ROOT / "README.md"))
    assert "It works under LangChain and LangGraph," in page


def test_with_a_public_address_every_link_of_the_package_page_is_absolute() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    page = package_page(readme, "https://code.example/shop/onceward", "v0.1.0")
    links = LINK.findall(page)

    assert len(links) == len(LINK.findall(readme))
    assert all(link.startswith("https://") for link in links)
    assert "](https://code.example/shop/onceward/blob/v0.1.0/docs/tutorial.md)" in page
    assert "](https://code.example/shop/onceward/raw/v0.1.0/bench/results.svg)" in page
    assert "](https://code.example/shop/onceward/blob/v0.1.0/README.md#run-the-hub)" in page
    assert urls("https://code.example/shop/onceward")["Issues"] == "https://code.example/shop/onceward/issues"


@pytest.mark.parametrize("code", ["`[a](b.md)`", "```python\nx = [1](b)\n```"])
def test_code_on_the_package_page_is_not_a_link(code: str) -> None:
    assert package_page(code, "", "v1") == code


def test_the_wheel_alone_is_imported_quickly(installed: Path) -> None:
    """The processor time of the fastest of several imports, because other tests run at the same time.

    On a busy machine, which also imports the standard library slowly, the limit is a multiple of that time.
    """
    program = (
        "import sys, time; sys.path.append(sys.argv[1]); start = time.process_time();"
        "import asyncio, inspect, sqlite3; python = time.process_time() - start; import onceward;"
        "print(time.process_time() - start, python, onceward.__file__, onceward.__version__,"
        " 'onceward.http' in sys.modules);"
        "onceward.http.Rule, onceward.IdempotencyMiddleware"
    )
    # Without site-packages: the standard library, the wheel and its dependencies.
    command = [sys.executable, "-I", "-S", "-c", program, str(installed)]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(5)
    ]

    seconds, python = (min(float(run[column]) for run in runs) for column in (0, 1))
    file, version, has_middleware = runs[0][2:]
    assert Path(file).is_relative_to(installed)
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert has_middleware == "False"
    assert seconds < max(IMPORT_SECONDS_MAX, STANDARD_LIBRARY_TIMES_MAX * python)
