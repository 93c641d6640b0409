"""`check_hub`: a running hub, over its API."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from tests.hub.hub_process import RunningHub, running_hub
from tests.servers.scripted_http import Cut, ScriptedResponse, Step, scripted

from onceward import open_ledger
from onceward.cli import main
from onceward.core.claim import Claim
from onceward.errors import InvalidOption
from onceward.hub.doctor.check_result import CheckResult, Level
from onceward.hub.doctor.running_hub import check_hub


def wrong(found: list[CheckResult]) -> dict[str, Level]:
    return {finding.check: finding.level for finding in found if finding.level is not Level.OK}


def test_a_hub_that_does_not_run_is_a_problem() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        found = list(check_hub(f"http://127.0.0.1:{unused.getsockname()[1]}", None))

    assert wrong(found) == {"hub": Level.PROBLEM}


ALIVE = ScriptedResponse(200, body=b'{"status":"ok"}')
VERSION = ScriptedResponse(200, body=b'{"info":{"version":"0"}}')
REFUSED = ScriptedResponse(400, {"Content-Type": "application/problem+json"}, b'{"detail":"set auth.allowed_hosts"}')


@pytest.mark.parametrize(
    ("answer", "detail"),
    [(ScriptedResponse(200, body=b"<p>hello"), "unexpected response"), (REFUSED, "set auth.allowed_hosts")],
    ids=["another server", "a refused name"],
)
def test_a_response_that_is_not_the_hubs_is_a_problem_with_its_reason(answer: Step, detail: str) -> None:
    with scripted(answer) as server:
        (found,) = check_hub(server.url, None)

    assert (found.check, found.level) == ("hub", Level.PROBLEM)
    assert detail in found.detail


@pytest.mark.parametrize(
    ("then", "check", "level"),
    [
        ((ScriptedResponse(200, body=b"[]"),), "version", Level.PROBLEM),
        ((Cut(),), "version", Level.PROBLEM),
        ((VERSION, ScriptedResponse(503)), "tokens", Level.WARNING),
    ],
    ids=["an unknown form", "no response", "a database that is down"],
)
def test_a_check_that_is_not_possible_is_never_ok(then: tuple[Step, ...], check: str, level: Level) -> None:
    with scripted(ALIVE, *then) as server:
        found = wrong([one for one, _ in zip(check_hub(server.url, None), range(3), strict=False)])

    assert found[check] is level


@pytest.mark.parametrize("url", ["http://[::1", "ftp://hub", "hub.example.com"])
def test_a_url_that_is_not_valid_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(InvalidOption, match="URL of"):
        list(check_hub(url, None))


def _doubt(data: Path) -> None:
    with open_ledger(f"sqlite:///{data.absolute()}/ledger.db", namespace="idempotency") as ledger:
        claim = ledger.blocking.begin("call", "charge:1", repeatable=False)
        assert isinstance(claim, Claim)
        assert ledger.blocking.doubt(claim)


def test_a_running_hub_is_checked_and_its_doubts_and_missing_tokens_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with running_hub(data_dir=data) as hub:
        healthy = list(check_hub(hub.url, None))
        assert wrong(healthy) == {}
        assert {one.check for one in healthy} == {
            "hub", "hub-clock", "version", "tokens", "stores", "doubts", "test-mode", "quota", "retention", "chat-retention"
        }  # fmt: skip
        assert wrong(list(check_hub(hub.url, None, lambda: time.time() - 100)))["hub-clock"] is Level.PROBLEM
        assert main(["doctor", "--hub", hub.url]) == 0
        _doubt(data)
        assert wrong(list(check_hub(hub.url, None))) == {"doubts": Level.WARNING}
        assert main(["doctor", "--hub", hub.url]) == 1
        assert "warning  doubts: 1 claim is in doubt" in capsys.readouterr().out
        _with_token(hub, data, capsys)


def _with_token(hub: RunningHub, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "ada", "--scope", "read", "--data-dir", str(data)]) == 0
    token = capsys.readouterr().out.split()[-1]

    found = {one.check: one for one in check_hub(hub.url, token)}

    assert found["tokens"].detail == "the hub requires a token"
    assert wrong(list(found.values())) == dict.fromkeys(("doubts", "quota", "retention"), Level.WARNING)
    assert "scope admin" in found["doubts"].advice
