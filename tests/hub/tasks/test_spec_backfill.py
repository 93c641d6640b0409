"""Specs of tasks become attachments, once, also those of databases older than tasks."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text
from tests.backends import Servers
from tests.hub.tasks.attachment_store import AttachmentStore
from tests.hub.tasks.race_injection import at_statement

from onceward.hub import tasks, topics
from onceward.hub.db import migrate as migrating
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.tasks.attachment import ADDED


def test_each_spec_becomes_one_attachment_and_a_second_run_adds_nothing(attachment_store: AttachmentStore) -> None:
    attachment_store.task("url", spec_id="https://example.com/a.md")
    attachment_store.task("path", spec_id="docs/a.md")
    attachment_store.task("long", spec_id="docs/" + "x" * 700)
    attachment_store.task("way-out", spec_id="../secret")
    attachment_store.task("file-url", spec_id="file:///etc/passwd")

    first = tasks.backfill_spec_attachments(attachment_store.database)
    second = tasks.backfill_spec_attachments(attachment_store.database)

    assert (first.task_count, first.added_count, first.skipped_count) == (5, 3, 0)
    assert (second.task_count, second.added_count, second.skipped_count) == (5, 0, 3)
    assert [task_id for task_id, _ in first.failed] == ["file-url", "way-out"]
    assert second.failed == first.failed
    rows = attachment_store.rows("SELECT task_id, kind, external_url, repo_path FROM attachments ORDER BY task_id")
    assert rows == [
        ("long", "spec", None, "docs/" + "x" * 700),
        ("path", "spec", None, "docs/a.md"),
        ("url", "spec", "https://example.com/a.md", None),
    ]
    assert len(attachment_store.events(ADDED)) == 3


def test_a_task_deleted_during_the_backfill_does_not_stop_the_others(attachment_store: AttachmentStore) -> None:
    attachment_store.task("a", spec_id="docs/a.md")
    attachment_store.task("b", spec_id="docs/b.md")
    attachment_store.task("c", spec_id="docs/c.md")

    with at_statement(
        attachment_store.database,
        "spec_id IS NOT NULL",
        lambda: attachment_store.write("DELETE FROM tasks WHERE id = 'a'"),
    ):
        done = tasks.backfill_spec_attachments(attachment_store.database)

    assert (done.added_count, done.skipped_count, done.failed) == (2, 1, ())


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_without_tasks_is_upgraded_and_keeps_its_rows(kind: str, servers: Servers, tmp_path: Path) -> None:
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
            tasks.create_link_attachment(tx, "t1", tasks.NewTaskAttachment("spec"), repo_path="a")
        with database.read() as tx:
            assert tx.execute(text("SELECT title FROM topics")).scalars().all() == ["Before"]
            names = tx.execute(text("SELECT name FROM events ORDER BY event_id")).scalars().all()
        assert names == ["topic.created", ADDED]
        assert topic is not None
