"""Creating the tables: once, from any process, and only forward."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from onceward.errors import SchemaTooNew
from onceward.hub.db import migrate as migrating
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.db.migrations import HEAD
from onceward.hub.db.tables import metadata_on


def test_the_head_is_the_last_step_and_steps_are_ordered_by_name() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrating._STEPS))
    config.set_main_option("path_separator", "os")
    steps = [step.revision for step in ScriptDirectory.from_config(config).walk_revisions()][::-1]

    assert steps == sorted(steps)
    assert steps[-1] == HEAD


def test_the_migrations_create_the_tables_that_the_code_defines(database: Database) -> None:
    with database.engine.connect() as connection, warnings.catch_warnings():
        # SQLite's expressions in indexes cannot be read back; its index is tested by what it refuses.
        warnings.simplefilter("ignore")
        context = MigrationContext.configure(connection, opts={"include_schemas": True})
        assert compare_metadata(context, metadata_on(is_sqlite=database.is_sqlite)) == []


def test_the_key_indexes_cover_only_rows_with_a_key(database: Database) -> None:
    """The comparison above does not check the conditions of indexes."""
    known = [
        (table, index)
        for table in metadata_on(is_sqlite=database.is_sqlite).tables.values()
        for index in table.indexes
        if str(index.dialect_kwargs.get("sqlite_where")).endswith("IS NOT NULL")
    ]
    with database.engine.connect() as connection:
        look = sqlalchemy.inspect(connection)
        for table, index in known:
            (there,) = [one for one in look.get_indexes(table.name, table.schema) if one["name"] == index.name]
            found = there.get("dialect_options", {})[f"{connection.dialect.name}_where"]
            assert str(found).strip("()") == str(index.dialect_kwargs["sqlite_where"])
            assert bool(there["unique"]) is index.unique

    assert len(known) == 8


def test_a_current_database_is_not_migrated(database: Database) -> None:
    assert migrate(database) is False


def test_alembic_is_imported_only_when_the_schema_is_behind(database: Database, database_url: str) -> None:
    assert migrate(database) is False
    program = """
import sys
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
migrate(open_database(sys.argv[1]))
assert "alembic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, database_url], check=True)


def test_a_database_of_a_newer_version_is_refused_and_unchanged(database: Database) -> None:
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    with pytest.raises(SchemaTooNew, match="upgrade Onceward"):
        migrate(database)

    with database.read() as tx:
        assert tx.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"


def test_a_failed_step_leaves_the_database_unchanged(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Oops(Exception):
        pass

    upgrade = migrating._upgrade

    def fail(tx: object) -> None:
        upgrade(tx)  # type: ignore[arg-type]
        raise Oops

    with closing(open_database(empty_url)) as database:
        monkeypatch.setattr(migrating, "_upgrade", fail)
        with pytest.raises(Oops):
            migrate(database)
        with database.read() as tx:
            assert migrating._version(tx) == ""
        monkeypatch.undo()
        assert migrate(database) is True


def _start(url: str, gate: str, answers: multiprocessing.SimpleQueue[bool]) -> None:
    import alembic.command  # noqa: F401, PLC0415  # so that all arrive at once

    with closing(open_database(url)) as database:
        while not Path(gate).exists():
            pass
        answers.put(migrate(database))


def test_processes_that_start_concurrently_migrate_once(empty_url: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    gate = tmp_path / "gate"
    processes = [context.Process(target=_start, args=(empty_url, str(gate), answers)) for _ in range(4)]
    for process in processes:
        process.start()
    gate.touch()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(answers.get() for _ in processes) == [False, False, False, True]
