"""The command as a process: interrupted, on a terminal, in a pipe, and beside a running hub."""

from __future__ import annotations

import hashlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked_python import forked_python
from tests.hub.hub_process import environment
from tests.servers.scripted_http import Cut, Hold, ScriptedResponse, Step, head, scripted
from tests.waiting import SECONDS_MAX, until

from onceward.hub.client import BlockingHub

ONCEWARD = (sys.executable, "-m", "onceward")


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [forked_python("onceward.cli.commands.serve"), "-m", "onceward", *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )


def content_head(content: bytes) -> bytes:
    return head(
        "HTTP/1.1 200 OK",
        f"Content-Length: {len(content)}",
        f'ETag: "sha256-{hashlib.sha256(content).hexdigest()}"',
        "Content-Type: application/octet-stream",
    )


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupted", "ended"])
def test_an_interrupted_download_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    content = os.urandom(3 * 1024 * 1024)
    folder = tmp_path / "target"
    folder.mkdir()
    with scripted(Hold(content_head(content) + content[: 2 * 1024 * 1024])) as server:
        command = [*ONCEWARD, "attach", "get", "at-1", "--output", str(folder / "got"), "--hub", server.url]
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as process:

            def is_under_way() -> bool:
                assert process.poll() is None
                return written(folder) >= 1024 * 1024

            until(is_under_way, "nothing was written")
            process.send_signal(number)
            _, error = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 128 + number
    assert error.strip() == b""
    assert list(folder.iterdir()) == []


def test_a_download_with_the_wrong_bytes_leaves_nothing(tmp_path: Path) -> None:
    content = os.urandom(1000)
    steps: list[Step] = [Cut(content_head(content) + bytes(1000))]
    with scripted(*steps) as server:
        done = run("attach", "get", "at-1", "--output", "got", "--hub", server.url, cwd=tmp_path)

    assert done.returncode == 1
    assert b"do not match the ETag" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    """`onceward attach get … | head` closes the pipe early."""
    content = os.urandom(900_000)
    answer = ScriptedResponse(200, {"ETag": f'"sha256-{hashlib.sha256(content).hexdigest()}"'}, content)
    with scripted(answer) as server:
        command = [*ONCEWARD, "attach", "get", "at-1", "--output", "-", "--hub", server.url]
        with subprocess.Popen(
            command, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(1000)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(SECONDS_MAX) == 1


def on_a_terminal(*arguments: str, cwd: Path) -> str:
    """Return the output of a command on a terminal."""
    shown = b""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*ONCEWARD, *arguments],
        cwd=cwd,
        env=environment({"TERM": "xterm", "COLUMNS": "120"}),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            while piece := os.read(ours, 65_536):
                shown += piece
        except OSError:
            pass  # That is how a terminal ends on Linux.
        finally:
            os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def test_an_operation_without_figures_is_shown_with_the_elapsed_time(hub: tuple[str, Path], tmp_path: Path) -> None:
    """Without tasks, the hub reports no figures of which a percentage could be computed."""
    text = on_a_terminal("admin", "backfill-spec-attachments", "--hub", hub[0], cwd=tmp_path)

    assert "0:00:0" in text
    assert "-:--:--" not in text
    assert "bytes/s" not in text


def test_a_terminal_gets_tables_and_progress_bars(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    assert run("task", "add", "Paint [red]", "--id", "shed", cwd=tmp_path).returncode == 0
    text = on_a_terminal("attach", "add", "shed", "a.txt", "--kind", "other", cwd=tmp_path)
    text += on_a_terminal("task", "list", cwd=tmp_path)

    assert "5/5 bytes" in text
    assert "Paint [red]" in text
    assert "│" in text


def test_a_command_works_beside_a_hub_on_the_same_data(hub: tuple[str, Path], tmp_path: Path) -> None:
    url, data_dir = hub
    where = ("--data-dir", data_dir)
    (tmp_path / "a.bin").write_bytes(os.urandom(1000))
    with BlockingHub(url) as client, client.follow() as following:
        task = client.create_task("Beside")
        added = run("attach", "add", task.id, "a.bin", "--kind", "other", *where, cwd=tmp_path)
        assert added.returncode == 0, added.stderr  # otherwise the wait below never ends
        event = next(following)
        (attachment,) = client.task_attachments(task.id)
        client.download(attachment.id, tmp_path / "got")
        client.delete_task(task.id)

    assert added.stdout.decode().strip() == attachment.id == event.entity_id
    assert event.name == "task.attachment_added"
    assert (tmp_path / "got").read_bytes() == (tmp_path / "a.bin").read_bytes()
