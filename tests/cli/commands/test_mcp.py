"""`onceward mcp wrap`: its options and its ledger. `tests/integrations/mcp_wrap/` has the proxy."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import until

from onceward import open_ledger
from onceward.cli import main

# A server that ends as soon as its input ends.
IDLE = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(5)"]


def test_the_ledger_is_in_the_home_folder_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process: the command reads the real standard input."""
    monkeypatch.setenv("HOME", str(tmp_path))
    program = f"import sys; from onceward.cli import main; sys.exit(main(['mcp', 'wrap', '--', *{IDLE!r}]))"
    done = subprocess.run([sys.executable, "-c", program], input=b"", capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (5, b"", b"")
    assert stat.S_IMODE((tmp_path / ".onceward").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / ".onceward" / "mcp.db").stat().st_mode) == 0o600


def test_expired_calls_are_purged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/calls.db"
    with open_ledger(url, namespace="mcp") as ledger:
        ledger.blocking.run("k", lambda: 1, effect="irreversible", retain_seconds=0.001)
        program = f"from onceward.cli import main; main(['mcp', 'wrap', '--ledger', {url!r}, *{IDLE!r}])"
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        until(lambda: not ledger.blocking.scan().entries)
        process.communicate(timeout=60)

    assert process.returncode == 0


def test_options_after_the_command_belong_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "wrap", "--ledger", "memory:", "no-such-program", "--config", "x"]) == 1
    assert "no-such-program" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'COMMAND...'"),
        (["--config", "none.toml", "x"], "cannot read 'none.toml'"),
        (["--unlisted", "ask", "x"], "'ask' is not one of"),
        (["--ledger", "odd:", "x"], "odd"),
        (["--group", "", "x"], "turn_group_id must be a string"),
    ],
)
def test_wrong_usage_is_reported_before_the_server_starts(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["mcp", "wrap", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_help_shows_a_configuration_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "wrap", "--help"]) == 0
    shown = capsys.readouterr().out

    assert "[tools.refund]" in shown
    assert "onceward mcp wrap --config shop.toml -- npx" in shown
