"""The hub's files are private to its owner, whatever the umask, and it runs no code from the current folder."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.hub.hub_process import SERVE, running_hub

from onceward.hub.server import serve

# Modules that a hub imports while it starts or serves; each copy here reports that it was executed.
PLANTED = ("uvloop", "httptools", "structlog", "alembic", "uvicorn", "selectors", "multiprocessing", "runpy_extra")


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    found = {".": stat.S_IMODE(folder.stat().st_mode)}
    for path in folder.rglob("*"):
        found[path.relative_to(folder).as_posix()] = stat.S_IMODE(path.lstat().st_mode)
    return found


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path, workers: str) -> None:
    data = tmp_path / "data"

    elsewhere = tmp_path / "elsewhere.db"
    args = ["--workers", workers, *(["--ledger", f"sqlite:///{elsewhere}"] if workers == "2" else [])]

    with running_hub(data_dir=data, args=args, command=SERVE) as hub, httpx.Client(base_url=hub.url) as client:
        assert client.post("/v1/tasks", json={"id": "t1", "title": "x"}, headers={"Idempotency-Key": "k"}).is_success
        files = {"content": ("a.txt", b"hello", "text/plain")}
        sent = client.post("/v1/tasks/t1/attachments", files=files, data={"kind": "other"})
        found = modes(data)
        found |= {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("elsewhere*")}

    assert sent.status_code == 201, sent.text
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
    assert {"hub.db", "ledger.db" if workers == "1" else "elsewhere.db"} <= set(found)


def test_a_folder_that_others_can_read_is_reported_at_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    data.chmod(0o755)

    with running_hub(data_dir=data) as hub:
        line = hub.wait_for_line("data_folder_is_readable_by_others")

    event = json.loads(line.string)
    assert event["event"] == "data_folder_is_readable_by_others"
    assert (event["folder"], event["do"]) == (str(data), f"chmod 700 {data}")


def test_files_of_an_older_hub_become_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_hub(data_dir=data):
        pass
    for name in ("hub.db", "ledger.db"):
        (data / name).chmod(0o644)

    with running_hub(data_dir=data):
        found = modes(data)

    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


@pytest.mark.parametrize("command", ["module", "script"])
def test_modules_in_the_current_folder_are_not_imported(tmp_path: Path, command: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in PLANTED:
        (here / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit(7)\n"
        )
    script = Path(sys.executable).with_name("onceward")
    # `python -m` itself imports the standard library from the current folder; Onceward cannot change that.
    command_line = [sys.executable, "-P", "-m", "onceward", "serve"] if command == "module" else [str(script), "serve"]

    with running_hub(data_dir=tmp_path / "data", cwd=here, command=command_line, args=["--workers", "2"]) as hub:
        answer = httpx.get(f"{hub.url}/healthz")

    assert answer.status_code == 200
    assert not (tmp_path / "ran").exists()


def test_python_m_removes_the_current_folder_before_any_import(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("uvloop", "structlog", "alembic", "uvicorn", "click"):
        (here / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit(7)\n"
        )

    with running_hub(data_dir=tmp_path / "data", cwd=here, command=SERVE) as hub:
        answer = httpx.get(f"{hub.url}/healthz")

    assert answer.status_code == 200
    assert not (tmp_path / "ran").exists()


def test_a_brain_in_the_current_folder_is_found_and_shadows_nothing(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "desk.py").write_text("def brain(turn, context):\n    return 'from the desk'\n")
    (here / "uvloop.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('uvloop ')\nraise SystemExit(7)\n")
    args = ["--brain", "desk:brain", "--workers", "2"]

    with running_hub(data_dir=tmp_path / "data", cwd=here, args=args, command=SERVE) as hub:
        answer = httpx.post(f"{hub.url}/chat", json={"message": "hello"}, headers={"Prefer": "wait=10"}, timeout=20)

    assert answer.status_code == 200, answer.text
    assert not (tmp_path / "ran").exists()


def test_a_planted_fifo_does_not_block_the_workers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    location, prefix = serve._metrics_location(data)
    planted = location / f"{prefix}planted"
    os.mkfifo(planted)
    try:
        with running_hub(data_dir=data, args=["--workers", "2"], command=SERVE) as hub:
            answer = httpx.get(f"{hub.url}/healthz")
    finally:
        planted.unlink()

    assert answer.status_code == 200
