"""`onceward demo`, as a person starts it: in a terminal, in a pipe, and interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from tests.cli.serving_command import serving
from tests.hub.hub_process import environment
from tests.waiting import until

from onceward.cli.demo.bank import Bank

DEMO = (sys.executable, "-m", "onceward", "demo")
_ESCAPE = re.compile(rb"\x1b\[[0-9;]*m")


def in_terminal(env: Mapping[str, str]) -> tuple[int, bytes]:
    """Run the demo in a pseudo-terminal on which nobody types; return its exit code and output."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(DEMO, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(env)) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # Linux reports the end of a terminal as an error
                break
            if not piece:
                break
            output += piece
    os.close(ours)
    return process.returncode, output


def check_story(output: bytes) -> None:
    text = _ESCAPE.sub(b"", output).decode()
    assert re.search(r"the same request again +-> 201 ch_1, replayed", text)
    assert re.search(r"kill -9 \d+", text)
    assert "Charges for order-2: 1" in text
    assert re.search(r"a retry +-> 409 in-doubt", text)
    assert re.search(r"the next retry +-> 201 ch_3, replayed", text)
    assert "3 payments, 2 kills: 3 charges." in text


def test_the_demo_tells_its_story_in_a_terminal_in_under_a_minute_and_leaves_nothing(tmp_path: Path) -> None:
    """A minute of processor time: another minute depends on what else the machine does."""
    before = os.times()

    code, output = in_terminal({"TMPDIR": str(tmp_path), "TERM": "xterm"})

    assert (code, list(tmp_path.iterdir())) == (0, []), output.decode()
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 60
    assert _ESCAPE.search(output)
    check_story(output)


def test_the_demo_is_plain_with_no_color_prints_json_and_can_leave_its_console_open(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    with (
        serving("demo", "--serve", "--port", "0", cwd=tmp_path, env=env) as (url, lines),
        subprocess.Popen(
            (*DEMO, "--json"), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment(env)
        ) as piped,
    ):
        code, plain = in_terminal({**env, "NO_COLOR": "1", "TERM": "xterm"})
        page = httpx.get(f"{url}/console/in-doubt").text
        printed, _ = piped.communicate(timeout=120)

    output = "".join(lines).encode()
    assert code == 0, plain.decode()
    assert b"\x1b" not in plain + output
    check_story(plain)
    check_story(output)
    assert "POST /pay-unkeyed" in page
    assert "pay-order-4" in page
    assert list(tmp_path.iterdir()) == []
    parts = json.loads(printed)["parts"]
    check_story("\n".join(text for part in parts for text in (*part["lines"], part["result"])).encode())
    assert [part["heading"][:2] for part in parts] == ["1.", "2.", "3.", "Th"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_shop_behind(tmp_path: Path, number: signal.Signals) -> None:
    env = environment({"TMPDIR": str(tmp_path)})
    with subprocess.Popen(DEMO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        lines = [next(process.stdout)]
        while not (found := re.search(r"kill -9 (\d+)", lines[-1])):
            lines.append(next(process.stdout))
        children = until(lambda: _children(process.pid) - {int(found[1])})
        process.send_signal(number)
        process.stdout.close()

    until(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children), "a shop is left")
    assert "\x1b" not in "".join(lines), "a pipe is no terminal"
    if number is signal.SIGTERM:
        assert (process.returncode, list(tmp_path.iterdir())) == (143, [])


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {int(child) for child in (thread / "children").read_text().split()}
    return found


def test_a_bank_with_keys_books_a_key_once() -> None:
    bank = Bank()

    assert [bank.book("o", "k"), bank.book("o", "k"), bank.book("o", None), bank.book("o", None)] == [
        "ch_1", "ch_1", "ch_2", "ch_3"
    ]  # fmt: skip
