"""A hub with a console, in the test's own process, and operations in every state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.hub.console.no_script_browser import NoScriptBrowser
from tests.hub.in_process_hub import Client, in_process_hub

from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.security import tokens
from onceward.ledger import Ledger


@pytest.fixture
def config(tmp_path: Path, sqlite_template: Path) -> Config:
    shutil.copy(sqlite_template, tmp_path / "hub.db")
    return Config(HubSettings(data_dir=str(tmp_path)))


@pytest.fixture
def ledger(config: Config) -> Iterator[Ledger]:
    """The hub's ledger, opened a second time."""
    with data_folder.ledger(config) as ledger:
        yield ledger


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    with in_process_hub(config) as client:
        yield client


@pytest.fixture
def browser(client: Client) -> NoScriptBrowser:
    return NoScriptBrowser(client)


MakeToken = Callable[..., tuple[str, str]]


@pytest.fixture
def make_token(config: Config) -> MakeToken:
    """Create a token; return its id and its secret text."""

    def make(name: str, *scopes: str, valid_seconds: float | None = None) -> tuple[str, str]:
        with closing(open_database(config.database_url)) as database, database.write() as tx:
            token, text = tokens.create(tx, name, scopes, valid_seconds=valid_seconds)
        return token.token_id, text

    return make
