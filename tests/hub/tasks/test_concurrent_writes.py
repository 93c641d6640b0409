"""Concurrent writers in PostgreSQL: each change has one event, and no writer stops the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from sqlalchemy import text
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore
from tests.waiting import SECONDS_MAX, until

from onceward.errors import NotFound
from onceward.hub import tasks
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks import Collected, TaskAttachment
from onceward.hub.tasks.attachment import REMOVED

_WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def backend() -> str:
    return "postgresql-folder"


@contextmanager
def running_concurrently(attachment_store: AttachmentStore, act: Callable[[], object]) -> Iterator[list[object]]:
    """Run it in a thread until it waits for a lock; after the block, to its end. Yields the list for its result."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(act())
        except NotFound as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def waits() -> bool:
        found = bool(attachment_store.rows(_WAITING))
        assert found or thread.is_alive(), f"it waited for nobody: {came}"
        return found

    until(waits, "it waited for nobody")
    yield came
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


def removed_ids(attachment_store: AttachmentStore) -> list[str]:
    return sorted(event.entity_id for event in attachment_store.events(REMOVED))


def delete_task(attachment_store: AttachmentStore) -> int:
    with attachment_store.database.write() as tx:
        return tasks.delete_task(tx, "t1")


def expire(attachment_store: AttachmentStore) -> None:
    attachment_store.write("UPDATE attachments SET created_at = :now, expires_at = :now", now=now_text())


def test_a_task_and_its_attachment_deleted_concurrently_have_one_event(attachment_store: AttachmentStore) -> None:
    made = [attachment_store.attach(b"1"), attachment_store.attach(b"2")]
    with ExitStack() as stack, attachment_store.database.write() as tx:
        tasks.delete_attachment(tx, made[0].id)
        came = stack.enter_context(running_concurrently(attachment_store, lambda: delete_task(attachment_store)))

    assert came == [1]
    assert removed_ids(attachment_store) == sorted(one.id for one in made)


def test_an_expired_attachment_that_another_process_deletes_has_one_event(attachment_store: AttachmentStore) -> None:
    made = [attachment_store.attach(b"%d" % number) for number in range(3)]
    expire(attachment_store)
    with ExitStack() as stack, attachment_store.database.write() as tx:
        tasks.delete_attachment(tx, made[1].id)
        came = stack.enter_context(running_concurrently(attachment_store, attachment_store.collect))

    (found,) = came
    assert isinstance(found, Collected)
    assert found.expired_count == 2
    assert removed_ids(attachment_store) == sorted(one.id for one in made)


def test_a_task_deleted_while_its_attachments_expire_has_one_event_each(attachment_store: AttachmentStore) -> None:
    made = [attachment_store.attach(b"%d" % number) for number in range(3)]
    expire(attachment_store)
    with ExitStack() as stack, attachment_store.database.write() as tx:
        tasks.delete_task(tx, "t1")
        came = stack.enter_context(running_concurrently(attachment_store, lambda: attachment_store.attach(b"late")))

    assert isinstance(came[0], NotFound)
    assert attachment_store.collect().expired_count == 0
    assert removed_ids(attachment_store) == sorted(one.id for one in made)
    assert attachment_store.collect().failed_count == 0
    assert attachment_store.audit() == SOUND


def test_an_attachment_deleted_twice_concurrently_has_one_event(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(b"1")
    with ExitStack() as stack, attachment_store.database.write() as tx:
        tasks.delete_attachment(tx, made.id)
        came = stack.enter_context(running_concurrently(attachment_store, lambda: attachment_store.delete(made.id)))

    assert isinstance(came[0], NotFound)
    assert removed_ids(attachment_store) == [made.id]


def test_a_row_that_is_used_again_during_gc_stays(attachment_store: AttachmentStore) -> None:
    """gc has read the rows before the attachment was inserted, so only the foreign key protects the blob."""
    made = [attachment_store.attach(b"%d" % number) for number in range(3)]
    for one in made:
        attachment_store.delete(one.id)
    with ExitStack() as stack, attachment_store.database.write() as tx:
        # An upload of the same content, with a clock that is slow.
        tx.execute(text("UPDATE blobs SET uploaded_at = uploaded_at WHERE id = :id"), {"id": made[1].blob_id})
        tx.execute(
            text("""INSERT INTO attachments (id, task_id, kind, source_type, blob_id, created_at, updated_at)
                    VALUES ('at-late', 't1', 'spec', 'managed_blob', :id, '2020', '2020')"""),
            {"id": made[1].blob_id},
        )
        came = stack.enter_context(running_concurrently(attachment_store, attachment_store.collect))

    (found,) = came
    assert isinstance(found, Collected)
    assert (found.candidate_count, found.deleted_count, found.failed_count) == (3, 2, 0)
    assert attachment_store.audit() == SOUND


def test_an_upload_that_waits_for_the_deletion_of_its_row_starts_again(attachment_store: AttachmentStore) -> None:
    attachment_store.delete(attachment_store.attach(b"1").id)
    with ExitStack() as stack, attachment_store.database.write() as tx:
        tx.execute(text("DELETE FROM blobs"))
        came = stack.enter_context(running_concurrently(attachment_store, lambda: attachment_store.attach(b"1")))

    assert isinstance(came[0], TaskAttachment)
    assert attachment_store.content(came[0].id) == b"1"
    assert attachment_store.audit() == SOUND
