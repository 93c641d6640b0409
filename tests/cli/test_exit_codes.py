"""Every documented exit code, from the real command, with one line of error for each failure."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.test_processes import ONCEWARD, run
from tests.hub.hub_process import environment
from tests.servers.scripted_http import Hold, ScriptedResponse, bind, scripted, url_of
from tests.waiting import SECONDS_MAX

from onceward import open_ledger
from onceward.cli import main
from onceward.cli.remote import hub
from onceward.core.claim import Claim

LEDGER = ("--ledger", "sqlite:///claims.db", "--namespace", "n")
CLAIM = ("call", "charge:1", "--version", "1", "--committed", "--reason", "r")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: with a data folder, a ledger that has a claim in progress, and a file."""
    monkeypatch.chdir(tmp_path)
    assert main(["task", "add", "T", "--id", "t1", "--data-dir", "data", "--idempotency-key", "k"]) == 0
    with open_ledger("sqlite:///claims.db", namespace="n") as ledger:
        assert isinstance(ledger.blocking.begin("call", "charge:1", None, repeatable=False), Claim)
    (tmp_path / "file").write_text("text", "utf-8")
    return tmp_path


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The URL of a port that nobody listens on."""
    with closing(bind()) as taken:
        yield url_of(taken)


PROBLEM = {"Content-Type": "application/problem+json"}


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ("claims", "list", *LEDGER)),
        (0, ("claims", "list", "--fail-if-any", "in_doubt", *LEDGER)),
        (0, ("--help",)),
        (1, ("task", "show", "none", "--data-dir", "data")),
        (1, ("task", "list", "--data-dir", "none")),
        (1, ("task", "add", "T", "--id", "t1", "--data-dir", "data")),
        (1, ("task", "add", "Another", "--idempotency-key", "k", "--data-dir", "data")),
        (1, ("attach", "get", "at-none", "--output", "new", "--data-dir", "data")),
        (1, ("claims", "show", "call", "none", *LEDGER)),
        (1, ("claims", "resolve", *CLAIM, *LEDGER)),
        (1, ("claims", "list", "--ledger", "redis://127.0.0.1:1/0")),
        (1, ("token", "revoke", "none", "--data-dir", "data")),
        (2, ()),
        (2, ("claims",)),
        (2, ("claims", "lists", *LEDGER)),
        (2, ("claims", "list", "--limit", "0", *LEDGER)),
        (2, ("claims", "list", "--ledger", "sqlite:///claims.db?mode=ro")),
        (2, ("claims", "list", "--ledger", "redis://127.0.0.1:1/0?colour=red")),
        (2, ("claims", "list", "--namespace", "a b", "--ledger", "sqlite:///claims.db")),
        (2, ("claims", "show", "", "k", *LEDGER)),
        (2, ("task", "list", "--config", "none.toml")),
        (2, ("task", "add", " ", "--data-dir", "data")),
        (2, ("attach", "add", "t1", "none", "--kind", "spec", "--data-dir", "data")),
        (2, ("attach", "add", "t1", "file", "--kind", "spec", "--media-type", "image/png", "--data-dir", "data")),
        (2, ("ingest", "backfill", "none", "--data-dir", "data")),
        (2, ("ingest", "explain", "none", "--data-dir", "data")),
        (3, ("claims", "list", "--fail-if-any", "in_progress", *LEDGER)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_command_ends_with_its_documented_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str], code: int, arguments: tuple[str, ...]
) -> None:
    assert folder.is_dir()
    capsys.readouterr()

    assert main(list(arguments)) == code
    printed = capsys.readouterr()
    if code in {1, 2} and arguments not in {(), ("claims",)}:
        assert printed.err.startswith("onceward: "), printed.err
        assert printed.err.count("\n") == 1
    else:
        assert "onceward: " not in printed.err


def test_a_file_that_is_too_large_is_wrong_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_ATTACHMENTS__MAX_UPLOAD_BYTES", "3")

    assert main(["attach", "add", "t1", str(folder / "file"), "--kind", "spec", "--data-dir", "data"]) == 2


def test_a_hub_that_does_not_answer_is_a_failure(
    elsewhere: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_DEADLINE_SECONDS", 0.5)
    assert main(["task", "list", "--hub", elsewhere]) == 1

    assert capsys.readouterr().err.startswith(f"onceward: no response from {elsewhere}; is a hub running there?")


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (401, 1), (403, 1), (404, 1), (409, 1), (413, 2), (422, 1), (418, 1)]
)
def test_a_refusal_by_a_hub_is_a_failure_unless_the_input_is_wrong(
    status: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripted(ScriptedResponse(status, PROBLEM, b'{"detail": "no", "status": %d}' % status)) as server:
        assert main(["task", "add", "T", "--hub", server.url, "--token", "x"]) == code

    assert capsys.readouterr().err.startswith("onceward: ")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ("claims", "list", *LEDGER)),
        (1, ("claims", "resolve", *CLAIM, *LEDGER)),
        (2, ("claims", "resolve", "call", "charge:1", *LEDGER)),
        (3, ("claims", "list", "--fail-if-any", "in_progress", *LEDGER)),
    ],
    ids=["0", "1", "2", "3"],
)
def test_the_process_ends_with_the_exit_code(folder: Path, code: int, arguments: tuple[str, ...]) -> None:
    assert run(*arguments, cwd=folder).returncode == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_process_ended_by_a_signal_has_the_exit_code_of_the_signal(number: signal.Signals, code: int) -> None:
    with (
        scripted(Hold()) as server,
        subprocess.Popen(
            [*ONCEWARD, "task", "list", "--hub", server.url], env=environment(), stderr=subprocess.PIPE
        ) as process,
    ):
        server.wait_for_request()
        process.send_signal(number)
        _, error = process.communicate(timeout=SECONDS_MAX)

    assert (process.returncode, error.strip()) == (code, b"")
