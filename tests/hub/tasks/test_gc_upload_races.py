"""An upload and gc run concurrently, at every critical step: no row without bytes, no bytes lost.

Then the same with one step left out, or in the order that is often sketched: it must be seen to break.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import text
from tests.hub.tasks import backends
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore
from tests.hub.tasks.race_injection import at_statement, intercepted, without

from onceward.errors import StoreUnavailable
from onceward.hub.blobs import BlobStore
from onceward.hub.tasks import TaskAttachment

CONTENT = b"the same bytes"
# gc waits for the lock while the upload holds it. This is how long the test waits for gc to fail to do so.
JOIN_SECONDS = 0.3


@pytest.fixture(params=backends.ALL)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class ConcurrentCollection:
    """Run gc in its own thread, which may have to wait for the upload."""

    def __init__(self, attachment_store: AttachmentStore, store: BlobStore | None = None) -> None:
        # In an object store only time protects what is not committed.
        age = 0 if attachment_store.store.backend == "local_cas" else 3600
        self._thread = threading.Thread(target=lambda: attachment_store.collect(store=store, orphan_seconds=age))

    def __call__(self) -> None:
        self._thread.start()
        self._thread.join(JOIN_SECONDS)

    def end(self) -> None:
        self._thread.join()


def garbage(attachment_store: AttachmentStore) -> None:
    """Store the content and its row, which no attachment references."""
    attachment_store.delete(attachment_store.attach(CONTENT).id)


def orphan(attachment_store: AttachmentStore) -> None:
    """Store the content without a row, with an old timestamp."""
    with attachment_store.store.temp_file() as temp_file:
        temp_file.write(CONTENT)
        os.utime(temp_file.path, (0, 0))
        temp_file.finish()
        os.utime(temp_file.path, (0, 0))
        attachment_store.store.put(temp_file, "bl-orphan00")


def nothing(attachment_store: AttachmentStore) -> None:
    assert attachment_store.keys() == set()


FOUND: dict[str, Callable[[AttachmentStore], None]] = {"garbage": garbage, "orphan": orphan, "nothing": nothing}
POINTS = ("before_size", "after_size", "before_put", "after_put", "inside_lock", "after_ensure", "outside_lock")


@pytest.mark.parametrize("found", FOUND)
def test_an_upload_that_meets_gc_at_any_step_keeps_its_bytes(attachment_store: AttachmentStore, found: str) -> None:
    for point in POINTS:
        FOUND[found](attachment_store)
        beside = ConcurrentCollection(attachment_store)
        made = attachment_store.attach(CONTENT, store=intercepted(attachment_store.store, **{point: beside}))
        if beside._thread.ident is None:
            # An upload of nothing known does not ask for sizes, and one of something known puts nothing.
            assert point in {"before_size", "after_size", "before_put", "after_put"}
        else:
            beside.end()

        assert attachment_store.content(made.id) == CONTENT, point
        assert attachment_store.audit().broken == [], point
        attachment_store.delete(made.id)
        attachment_store.collect()
        assert (attachment_store.audit(), attachment_store.keys(), attachment_store.count("blobs")) == (
            SOUND,
            set(),
            0,
        ), point


def test_gc_that_meets_an_upload_at_any_step_deletes_none_of_its_bytes(
    attachment_store: AttachmentStore,
) -> None:
    for words in ("FROM blobs WHERE id >", "SELECT blob_key FROM blobs"):
        garbage(attachment_store)
        with attachment_store.store.temp_file() as temp_file:
            temp_file.write(b"orphan")
            temp_file.finish()
            attachment_store.store.put(temp_file, "bl-orphan00")
        made: list[TaskAttachment] = []
        with at_statement(
            attachment_store.database,
            words,
            lambda made=made: made.append(attachment_store.attach(CONTENT)),  # type: ignore[misc]
        ):
            attachment_store.collect(orphan_seconds=0)

        assert attachment_store.content(made[0].id) == CONTENT, words
        assert attachment_store.audit() == SOUND, words
        attachment_store.delete(made[0].id)
        attachment_store.collect()


def test_bytes_that_an_upload_put_in_vain_are_not_taken_from_another_upload(attachment_store: AttachmentStore) -> None:
    """A blob has lost its bytes. gc deletes its row while the content is uploaded again, twice."""
    made = attachment_store.attach(CONTENT)
    for key in sorted(attachment_store.keys()):
        attachment_store.store.discard(key)
    attachment_store.delete(made.id)
    other, broken = [], []
    store = intercepted(
        attachment_store.store,
        after_put=attachment_store.collect,
        outside_lock=lambda: other.append(attachment_store.attach(CONTENT)),
        # It is put again right afterwards, unless the process is killed in between.
        after_discard=lambda: broken.extend(attachment_store.audit().broken),
    )

    own = attachment_store.attach(CONTENT, store=store)

    assert len(other) == 1
    assert broken == []
    assert attachment_store.content(other[0].id) == attachment_store.content(own.id) == CONTENT
    assert attachment_store.audit().broken == []
    attachment_store.collect()
    assert attachment_store.audit() == SOUND


def test_an_upload_that_cannot_clean_up_is_still_complete(attachment_store: AttachmentStore) -> None:
    def fail() -> None:
        raise StoreUnavailable("later")

    store = intercepted(attachment_store.store, after_put=lambda: attachment_store.attach(CONTENT), before_discard=fail)

    attachment_store.attach(CONTENT, store=store)

    assert attachment_store.count("attachments") == 2
    attachment_store.collect()
    assert attachment_store.audit() == SOUND
    assert len(attachment_store.keys()) == 1


def test_an_upload_that_restored_what_gc_just_deleted_removes_it_again(
    attachment_store: AttachmentStore,
) -> None:
    garbage(attachment_store)
    made = attachment_store.attach(
        CONTENT, store=intercepted(attachment_store.store, after_size=attachment_store.collect)
    )

    assert attachment_store.content(made.id) == CONTENT
    assert attachment_store.audit() == SOUND


@pytest.mark.parametrize("backend", ["postgresql-s3"])
def test_an_upload_that_stalled_for_an_hour_starts_again(
    attachment_store: AttachmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then, gc takes its bytes for orphans. In a folder, a lock protects them for as long as needed."""
    hour = [0.0]
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + hour[0])

    def stand_still() -> None:
        hour[0] = 3600.0
        attachment_store.collect(orphan_seconds=0)

    made = attachment_store.attach(CONTENT, store=intercepted(attachment_store.store, after_ensure=stand_still))

    assert attachment_store.content(made.id) == CONTENT
    assert attachment_store.audit() == SOUND


# One step left out.


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_without_ensure_gc_deletes_the_bytes(attachment_store: AttachmentStore) -> None:
    store = intercepted(without(attachment_store.store, "ensure"), after_put=attachment_store.collect)

    made = attachment_store.attach(CONTENT, store=store)

    assert attachment_store.audit().broken == [made.id]


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_without_the_lock_gc_deletes_the_bytes_before_the_commit(attachment_store: AttachmentStore) -> None:
    store = without(attachment_store.store, "lock")

    made = attachment_store.attach(
        CONTENT, store=intercepted(store, after_ensure=lambda: attachment_store.collect(store=store))
    )

    assert attachment_store.audit().broken == [made.id]


def test_deleting_bytes_before_the_row_loses_the_bytes_of_an_attachment(attachment_store: AttachmentStore) -> None:
    """By the time the row is to be deleted, another attachment references it."""
    garbage(attachment_store)
    ((blob_id, key),) = attachment_store.rows("SELECT id, blob_key FROM blobs")
    made = attachment_store.attach(CONTENT)

    attachment_store.store.discard(key)
    with pytest.raises(Exception, match=r"(?i)foreign key"), attachment_store.database.write() as tx:
        tx.execute(text("DELETE FROM blobs WHERE id = :id"), {"id": blob_id})

    assert attachment_store.audit().broken == [made.id]
