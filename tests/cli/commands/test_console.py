"""`onceward console` and `onceward demo --serve`, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.hub.console.sample_claims import doubt
from tests.hub.hub_process import ROOT, environment

from onceward import open_ledger
from onceward.cli.root_command import onceward

_READY = re.compile(r"on (http://127\.0\.0\.1:\d+)/console/")
_SECONDS_MAX = 60
PUBLIC = "0.0.0.0"  # noqa: S104  # it is refused


@contextmanager
def serving(*arguments: str, cwd: Path) -> Iterator[tuple[str, list[str]]]:
    """The command, until it serves; gives the URL and its output so far. It must end in order."""
    command = [sys.executable, "-m", "onceward", *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=environment({"NO_COLOR": "1"}),
    ) as process:
        assert process.stdout is not None
        killer = threading.Timer(_SECONDS_MAX, process.kill)
        killer.start()
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if found := _READY.search(line):
                break
        else:
            raise AssertionError("".join(lines))
        try:
            yield found[1], lines
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.stdout.read()
            killer.cancel()
    assert process.returncode in (0, 143), ROOT


def test_it_serves_an_application_s_ledger_until_it_is_stopped(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db", namespace="shop") as ledger:
        doubt(ledger, "charge:1", "charges", endpoint="")
    with serving("console", "--ledger", "sqlite:///ledger.db", "--port", "0", cwd=tmp_path) as (url, lines):
        page = httpx.get(f"{url}/console/in-doubt")

    assert "namespace shop" in lines[-1]
    assert page.status_code == 200
    assert "charge:1" in page.text


def test_the_demo_leaves_one_more_doubt_in_its_console(tmp_path: Path) -> None:
    with serving("demo", "--serve", "--port", "0", cwd=tmp_path) as (url, lines):
        page = httpx.get(f"{url}/console/in-doubt")

    assert "3 payments, 2 kills: 3 charges." in "".join(lines)
    assert "POST /pay-unkeyed" in page.text
    assert "pay-order-4" in page.text


def test_it_refuses_to_start_without_a_ledger_that_exists_or_on_a_public_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    missing = run.invoke(onceward, ["console"])
    wrong = run.invoke(onceward, ["console", "--ledger", "sqlite:///none.db"])
    with open_ledger("sqlite:///ledger.db") as ledger:
        doubt(ledger, "charge:1", "charges")
    public = run.invoke(onceward, ["console", "--ledger", "sqlite:///ledger.db", "--host", PUBLIC, "--port", "0"])

    assert "--ledger" in missing.output
    assert "does not exist" in str(wrong.exception)
    assert "can be reached from other machines" in str(public.exception)
