"""Specs of tasks become attachments, once; and data that was there before tasks were known."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text
from tests.backends import Servers
from tests.tasks.meddling import at_statement
from tests.tasks.vault import Vault

from onceward import tasks, topics
from onceward.db import migrate as migrating
from onceward.db.engine import open_database
from onceward.db.migrate import migrate
from onceward.tasks.attachment import ADDED


def test_each_spec_becomes_one_attachment_and_a_second_run_adds_nothing(vault: Vault) -> None:
    vault.task("url", spec_id="https://example.com/a.md")
    vault.task("path", spec_id="docs/a.md")
    vault.task("long", spec_id="docs/" + "x" * 700)
    vault.task("way-out", spec_id="../secret")
    vault.task("file-url", spec_id="file:///etc/passwd")

    first = tasks.backfill_spec_attachments(vault.database)
    second = tasks.backfill_spec_attachments(vault.database)

    assert (first.task_count, first.added_count, first.skipped_count) == (5, 3, 0)
    assert (second.task_count, second.added_count, second.skipped_count) == (5, 0, 3)
    assert [task_id for task_id, _ in first.failed] == ["file-url", "way-out"]
    assert second.failed == first.failed
    rows = vault.rows("SELECT task_id, kind, external_url, repo_path FROM attachments ORDER BY task_id")
    assert rows == [
        ("long", "spec", None, "docs/" + "x" * 700),
        ("path", "spec", None, "docs/a.md"),
        ("url", "spec", "https://example.com/a.md", None),
    ]
    assert len(vault.events(ADDED)) == 3


def test_a_task_that_goes_meanwhile_does_not_stop_the_others(vault: Vault) -> None:
    vault.task("a", spec_id="docs/a.md")
    vault.task("b", spec_id="docs/b.md")
    vault.task("c", spec_id="docs/c.md")

    with at_statement(vault.database, "spec_id IS NOT NULL", lambda: vault.write("DELETE FROM tasks WHERE id = 'a'")):
        done = tasks.backfill_spec_attachments(vault.database)

    assert (done.added_count, done.skipped_count, done.failed) == (2, 1, ())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_from_before_tasks_is_brought_up_with_what_it_holds(
    kind: str, servers: Servers, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/old.db" if kind == "sqlite" else servers.postgres.create_database()
    with closing(open_database(url)) as database:
        config = Config()
        config.set_main_option("script_location", str(migrating._STEPS))
        config.set_main_option("path_separator", "os")
        with database.write() as tx:
            config.attributes["connection"] = tx
            command.upgrade(config, "0001")
        with database.write() as tx:
            topic = topics.create_topic(tx, "Before")

        assert migrate(database)

        with database.write() as tx:
            tasks.create_task(tx, "After", task_id="t1")
            tasks.create_link_attachment(tx, "t1", tasks.NewAttachment("spec"), repo_path="a")
        with database.read() as tx:
            assert tx.execute(text("SELECT title FROM topics")).scalars().all() == ["Before"]
            names = tx.execute(text("SELECT name FROM events ORDER BY event_id")).scalars().all()
        assert names == ["topic.created", ADDED]
        assert topic is not None
