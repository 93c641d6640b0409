"""`onceward token`: created before the hub first runs, shown once, listed without secrets, revoked by id or name."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer

from onceward.cli import main
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.config.data_folder import opened
from onceward.hub.security.scopes import NARROWABLE
from onceward.hub.security.tokens import find, is_required


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> list[str]:
    """The flags that name an empty database."""
    if request.param == "sqlite":
        return []
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return ["--database", server.create_database()]


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["token", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed_by(capsys, *arguments, "--json"))


def test_a_token_is_made_listed_and_revoked(database: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    made = parsed(capsys, "create", "ada", "--scope", "write", "--scope", "read", *database)
    text = made.pop("token")
    config = Config(hub=HubSettings(database=database[-1] if database else ""))
    with opened(config) as opened_database, opened_database.read() as tx:
        found = find(tx, text)
    listed = parsed(capsys, "list", *database)
    revoked = parsed(capsys, "revoke", "ada", *database)
    again = main(["token", "revoke", "ada", *database])
    error = capsys.readouterr().err
    (after,) = parsed(capsys, "list", *database)["tokens"]

    assert found is not None
    assert (found.token_id, found.name, found.scopes) == (made["token_id"], "ada", frozenset({"read", "write"}))
    assert made["scopes"] == ["read", "write"]
    assert listed == {"tokens": [made]}
    assert revoked == {"revoked": 1}
    assert after["revoked_at"] is not None
    assert again == 1
    assert error == "onceward: no valid token has the id or name 'ada'; `onceward token list` lists the tokens\n"


def test_only_the_token_itself_is_on_standard_output(capsys: pytest.CaptureFixture[str], elsewhere: Path) -> None:
    """A script can then say `TOKEN=$(onceward token create …)`."""
    printed_by(capsys, "create", "bob", "--scope", "read", "--data-dir", "there")
    assert main(["token", "create", "ada", "--scope", "read", "--data-dir", "there"]) == 0
    printed = capsys.readouterr()
    listed = printed_by(capsys, "list", "--data-dir", "there")

    assert len(printed.out.split()) == 1
    assert printed.err.startswith("onceward: created token ")
    assert printed.err.endswith("for ada (read); it is not shown again\n")
    assert printed.out.strip() not in printed.err + listed
    assert (elsewhere / "there" / "hub.db").is_file()


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_a_token_for_a_folder_without_a_hub_is_created_with_a_note(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """An operator who forgets --data-dir would otherwise believe that the running hub now requires a token."""
    assert main(["token", "create", "ada", "--scope", "read", *flags]) == 0
    first = capsys.readouterr().err
    assert main(["token", "create", "bob", "--scope", "read", *flags]) == 0

    assert "'onceward-data' had no data, so this token is for a new hub there" in first
    assert "--data-dir" in first
    assert "had no data" not in capsys.readouterr().err


def test_the_help_names_every_part_of_a_narrowed_scope(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").replace(".", " ").split()

    assert set(NARROWABLE) - set(words) == set()


@pytest.mark.parametrize(
    "command", [["list"], ["revoke", "ada"], ["open-local", "--yes"]], ids=lambda command: command[0]
)
def test_nothing_is_created_in_a_folder_without_a_hub(
    capsys: pytest.CaptureFixture[str], elsewhere: Path, command: list[str]
) -> None:
    assert main(["token", *command, "--data-dir", "typo"]) == 1

    assert "no hub data in" in capsys.readouterr().err
    assert not (elsewhere / "typo").exists()


def test_the_list_of_tokens_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ada", "a-longer-name"):
        printed_by(capsys, "create", name, "--scope", "read", "--scope", "admin")
    printed_by(capsys, "revoke", "ada")

    head, first, second = printed_by(capsys, "list").splitlines()

    assert head.split() == ["ID", "NAME", "SCOPES", "CREATED", "EXPIRES", "LAST", "USED", "REVOKED"]
    assert first.split()[1:4] == ["ada", "admin", "read"]
    assert len(first.split()) == 6
    assert len(second.split()) == 5
    assert first.index("admin") == second.index("admin") == head.index("SCOPES")


def test_a_token_may_expire(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", "ada", "--scope", "read:topics", "--expires", "90d"]) == 0
    shown = capsys.readouterr().err
    (listed,) = parsed(capsys, "list")["tokens"]
    days = datetime.fromisoformat(listed["expires_at"]) - datetime.fromisoformat(listed["created_at"])

    assert days.days == 90
    assert f"(read:topics, valid until {listed['expires_at']}); it is not shown again" in shown
    assert listed["last_used_at"] is None
    assert listed["expires_at"] in printed_by(capsys, "list")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ada", "--scope", "read", "--expires", "soon"], "expected a number of seconds"),
        (["ada", "--scope", "read", "--expires", "0"], "expected a number of seconds"),
        (["ada", "--scope", "write:metrics"], "'write:metrics' is not one of 'read', 'write'"),
        (["1a2b3c4d5e6f", "--scope", "read"], "mistaken for the id"),
    ],
    ids=str,
)
def test_an_unusable_token_is_not_created(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["token", "create", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_hub_is_opened_again_only_with_yes_and_without_live_tokens(
    database: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed_by(capsys, "create", "ada", "--scope", "read", *database)
    live = main(["token", "open-local", "--yes", *database]), capsys.readouterr().err
    printed_by(capsys, "revoke", "ada", *database)
    unsure = main(["token", "open-local", *database]), capsys.readouterr().err
    config = Config(hub=HubSettings(database=database[-1] if database else ""))
    with opened(config) as opened_database, opened_database.read() as tx:
        before = is_required(tx)
    code = main(["token", "open-local", "--yes", *database])
    printed = capsys.readouterr()
    with opened(config) as opened_database, opened_database.read() as tx:
        after = is_required(tx)

    assert live == (1, "onceward: there is 1 valid token; revoke it first (`onceward token list` lists it)\n")
    assert unsure[0] == 2
    assert "--yes" in unsure[1]
    assert (before, code, after) == (True, 0, False)
    assert printed.out == ""
    assert re.fullmatch(
        r"onceward: \d{4}-\d\d-\d\dT\S+Z: user \S+ opened this hub: requests from this machine need no token until"
        r" the next token is created\n",
        printed.err,
    )
    assert len(parsed(capsys, "list", *database)["tokens"]) == 1
