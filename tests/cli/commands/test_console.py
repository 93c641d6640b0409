"""`onceward console`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from tests.cli.serving_command import serving
from tests.hub.console.sample_claims import doubt

from onceward import open_ledger
from onceward.cli.root_command import onceward

PUBLIC = "0.0.0.0"  # noqa: S104  # it is refused


def test_it_serves_an_application_s_ledger_until_it_is_stopped(tmp_path: Path) -> None:
    with open_ledger(f"sqlite:///{tmp_path}/ledger.db", namespace="shop") as ledger:
        doubt(ledger, "charge:1", "charges", endpoint="")
    with serving("console", "--ledger", "sqlite:///ledger.db", "--port", "0", cwd=tmp_path) as (url, lines):
        page = httpx.get(f"{url}/console/in-doubt")

    assert "namespace shop" in lines[-1]
    assert page.status_code == 200
    assert "charge:1" in page.text


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
