"""Contents of the hub's database, read without the hub."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from onceward.hub.config.config import Config

Dump = Callable[[], dict[str, list[tuple[object, ...]]]]


@pytest.fixture
def dump(config: Config) -> Dump:
    """Return all rows of all tables, except the times of sessions and tokens."""

    def read() -> dict[str, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(config.database_url.removeprefix("sqlite:///"))) as database:
            names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            assert "pkm_entries" in names
            return {name: database.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}  # noqa: S608

    return read
