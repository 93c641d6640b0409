"""A relative path means the folder that was current when it was opened, whatever is current later."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from onceward import open_ledger
from onceward.http.client.intents import Intents
from onceward.hub.db.engine import open_database


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    return here, there


def test_an_effect_is_not_repeated_because_its_process_changed_its_folder(folders: tuple[Path, Path]) -> None:
    _, there = folders
    ran: list[int] = []
    with open_ledger("sqlite:///ledger.db") as ledger:

        def charge() -> None:
            ledger.blocking.run("charge:1", lambda: ran.append(1), effect="irreversible")

        charge()
        os.chdir(there)
        # A fork closes the connection, and the next call opens another.
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        charge()

    assert (ran, list(there.iterdir())) == ([1], [])


def test_a_ledger_and_a_database_open_where_they_were_created(folders: tuple[Path, Path]) -> None:
    here, there = folders
    with open_ledger("sqlite:///ledger.db") as ledger, closing(open_database("sqlite:///hub.db")) as database:
        # The WAL checkpoint opens the file by this path.
        assert database.engine.url.database == str(here / "hub.db")
        os.chdir(there)
        ledger.blocking.run("a", lambda: 1, effect="pure")
        with database.write() as tx:
            tx.execute(text("CREATE TABLE notes (id TEXT)"))

    assert list(there.iterdir()) == []
    assert {"ledger.db", "hub.db"} <= {path.name for path in here.iterdir()}


def test_a_restarted_client_finds_the_key_of_its_intent(folders: tuple[Path, Path]) -> None:
    _, there = folders
    book = Intents(Path("intents.db"))
    key = book.key_for("order-42")

    os.chdir(there)

    assert (book.key_for("order-42"), list(there.iterdir())) == (key, [])
