"""Constraints of the tables against any writer, on both databases."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import insert, text

from onceward.hub.db.engine import Database
from onceward.hub.db.tables import attachment_labels, attachments, blobs, tasks

AT = "2026-11-16T00:00:00.000000Z"
LATER = "2026-11-17T00:00:00.000000Z"
TASK = {"id": "t1", "title": "T", "created_at": AT, "updated_at": AT}
BLOB = {
    "id": "bl-1", "sha256": "a" * 64, "size_bytes": 0, "storage_backend": "local_cas", "blob_key": "k", "created_at": AT,
    "uploaded_at": AT,
}  # fmt: skip
ATTACHMENT: dict[str, Any] = {
    "id": "at-1", "task_id": "t1", "kind": "spec", "source_type": "managed_blob", "blob_id": "bl-1", "created_at": AT,
    "updated_at": AT,
}  # fmt: skip
LINK: dict[str, Any] = {
    **ATTACHMENT,
    "source_type": "external_url",
    "blob_id": None,
    "external_url": "https://example.com",
}
PATH: dict[str, Any] = {**ATTACHMENT, "source_type": "repo_path", "blob_id": None, "repo_path": "a/b"}


@pytest.fixture
def database_with_rows(database: Database) -> Database:
    with database.write() as tx:
        tx.execute(insert(tasks), TASK)
        tx.execute(insert(blobs), BLOB)
    return database


def put(database: Database, table: sqlalchemy.Table, row: dict[str, Any]) -> None:
    with database.write() as tx:
        tx.execute(insert(table), row)


REFUSED: dict[str, tuple[sqlalchemy.Table, dict[str, Any]]] = {
    "second blob of one content": (blobs, {**BLOB, "id": "bl-2"}),
    "negative size": (blobs, {**BLOB, "id": "bl-2", "sha256": "b" * 64, "size_bytes": -1}),
    "short sha256": (blobs, {**BLOB, "id": "bl-2", "sha256": "b" * 63}),
    "sha256 in capitals": (blobs, {**BLOB, "id": "bl-2", "sha256": "B" * 64}),
    "sha256 that is not hex": (blobs, {**BLOB, "id": "bl-2", "sha256": "g" + "b" * 63}),
    "sha256 with a stranger inside": (blobs, {**BLOB, "id": "bl-2", "sha256": "b" * 32 + "-" + "b" * 31}),
    "second blob of one id": (blobs, {**BLOB, "sha256": "b" * 64}),
    "unknown kind": (attachments, {**ATTACHMENT, "kind": "file"}),
    "unknown source type": (attachments, {**ATTACHMENT, "source_type": "ftp"}),
    "unknown media type source": (attachments, {**ATTACHMENT, "media_type_source": "guessed"}),
    "unknown task": (attachments, {**ATTACHMENT, "task_id": "none"}),
    "unknown blob": (attachments, {**ATTACHMENT, "blob_id": "bl-none"}),
    "blob without blob": (attachments, {**ATTACHMENT, "blob_id": None}),
    "blob and URL": (attachments, {**ATTACHMENT, "external_url": "https://example.com"}),
    "blob and path": (attachments, {**ATTACHMENT, "repo_path": "a"}),
    "URL without URL": (attachments, {**LINK, "external_url": None}),
    "URL and blob": (attachments, {**LINK, "blob_id": "bl-1"}),
    "URL and path": (attachments, {**LINK, "repo_path": "a"}),
    "path without path": (attachments, {**PATH, "repo_path": None}),
    "path and blob": (attachments, {**PATH, "blob_id": "bl-1"}),
    "path and URL": (attachments, {**PATH, "external_url": "https://example.com"}),
    "expired before it began": (attachments, {**ATTACHMENT, "created_at": LATER, "expires_at": AT}),
    "no title of a task": (tasks, {**TASK, "id": "t2", "title": None}),
    "second task of one id": (tasks, TASK),
    "label of nothing": (attachment_labels, {"attachment_id": "none", "label": "x"}),
    **{
        f"a blob without {name}": (blobs, {**BLOB, "id": "bl-2", "sha256": "b" * 64, name: None})
        for name in ("id", "sha256", "size_bytes", "storage_backend", "blob_key", "created_at", "uploaded_at")
    },
    **{
        f"an attachment without {name}": (attachments, {**ATTACHMENT, name: None})
        for name in ("id", "task_id", "kind", "source_type", "media_type_source", "created_at", "updated_at")
    },
}
# The columns of each index, as the design has them.
INDEXES = {
    "idx_attachments_task_created": ["task_id", "created_at"],
    "idx_attachments_kind": ["kind"],
    "idx_attachments_media_type": ["media_type"],
    "idx_attachments_source_type": ["source_type"],
    "idx_attachments_blob_id": ["blob_id"],
    "idx_attachments_expires_at": ["expires_at"],
    "idx_attachment_labels_label": ["label"],
}


def test_the_tables_refuse_invalid_rows(database_with_rows: Database) -> None:
    accepted = []
    for name, (table, row) in REFUSED.items():
        with contextlib.suppress(sqlalchemy.exc.IntegrityError):
            put(database_with_rows, table, row)
            accepted.append(name)

    assert accepted == []


def test_the_tables_accept_valid_rows(database_with_rows: Database) -> None:
    for number, row in enumerate([ATTACHMENT, LINK, PATH, {**ATTACHMENT, "expires_at": AT}]):
        put(database_with_rows, attachments, {**row, "id": f"at-{number}"})
    put(database_with_rows, blobs, {**BLOB, "id": "bl-2", "sha256": "0123456789abcdef" * 4})
    put(database_with_rows, attachment_labels, {"attachment_id": "at-0", "label": "x"})

    with database_with_rows.read() as tx:
        assert tx.execute(text("SELECT media_type_source FROM attachments")).scalars().all() == ["unknown"] * 4


def test_an_attachment_id_is_unique(database_with_rows: Database) -> None:
    put(database_with_rows, attachments, ATTACHMENT)

    with pytest.raises(sqlalchemy.exc.IntegrityError):
        put(database_with_rows, attachments, LINK)


def test_a_label_is_unique_per_attachment(database_with_rows: Database) -> None:
    put(database_with_rows, attachments, ATTACHMENT)
    put(database_with_rows, attachment_labels, {"attachment_id": "at-1", "label": "x"})

    with pytest.raises(sqlalchemy.exc.IntegrityError):
        put(database_with_rows, attachment_labels, {"attachment_id": "at-1", "label": "x"})


def test_a_blob_in_use_cannot_be_deleted(database_with_rows: Database) -> None:
    put(database_with_rows, attachments, ATTACHMENT)

    with pytest.raises(sqlalchemy.exc.IntegrityError), database_with_rows.write() as tx:
        tx.execute(text("DELETE FROM blobs"))

    with database_with_rows.write() as tx:
        tx.execute(text("DELETE FROM attachments"))
        tx.execute(text("DELETE FROM blobs"))


def test_deleting_an_attachment_deletes_only_its_own_labels(database_with_rows: Database) -> None:
    for name in ("at-1", "at-2"):
        put(database_with_rows, attachments, {**ATTACHMENT, "id": name})
        put(database_with_rows, attachment_labels, {"attachment_id": name, "label": "x"})

    with database_with_rows.write() as tx:
        tx.execute(text("DELETE FROM attachments WHERE id = 'at-1'"))

    with database_with_rows.read() as tx:
        assert tx.execute(text("SELECT attachment_id FROM attachment_labels")).scalars().all() == ["at-2"]


def test_deleting_a_task_deletes_attachments_and_labels_and_leaves_the_blob(database_with_rows: Database) -> None:
    put(database_with_rows, attachments, ATTACHMENT)
    put(database_with_rows, attachment_labels, {"attachment_id": "at-1", "label": "x"})

    with database_with_rows.write() as tx:
        tx.execute(text("DELETE FROM tasks"))

    with database_with_rows.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM attachments")).scalar() == 0
        assert tx.execute(text("SELECT count(*) FROM attachment_labels")).scalar() == 0
        assert tx.execute(text("SELECT count(*) FROM blobs")).scalar() == 1


def test_every_designed_index_exists(database: Database) -> None:
    found = {
        index["name"]: index["column_names"]
        for table in ("attachments", "attachment_labels")
        for index in sqlalchemy.inspect(database.engine).get_indexes(table)
    }

    assert {name: found.get(name) for name in INDEXES} == INDEXES
