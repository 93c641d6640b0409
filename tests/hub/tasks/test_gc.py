"""gc: the blobs that it deletes, keeps and counts, and its behaviour on failures."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.hub.tasks import backends
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore
from tests.hub.tasks.race_injection import at_statement, without

from onceward.errors import StoreUnavailable
from onceward.hub.blobs import BlobStore
from onceward.hub.blobs.temp_file import GATHER_BYTES
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks.attachment import REMOVED
from onceward.hub.tasks.gc import FAILURES_MAX

LONG_AGO = "2020-01-01T00:00:00.000000Z"


def orphan(attachment_store: AttachmentStore, content: bytes, blob_id: str = "bl-orphan00") -> str:
    """Store bytes whose upload died before its row."""
    with attachment_store.store.temp_file() as temp_file:
        temp_file.write(content)
        temp_file.finish()
        return attachment_store.store.put(temp_file, blob_id)


class FailingStore:
    """A store that cannot discard some keys."""

    def __init__(self, store: BlobStore, fails: Callable[[str], bool]) -> None:
        self._store = store
        self._fails = fails

    def discard(self, key: str) -> None:
        if self._fails(key):
            raise StoreUnavailable("this one stays")
        self._store.discard(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def failing_store(store: BlobStore, fails: Callable[[str], bool]) -> BlobStore:
    return cast("BlobStore", FailingStore(store, fails))


@pytest.mark.parametrize("backend", backends.ALL)
def test_unused_blobs_are_deleted_and_the_rest_stays(attachment_store: AttachmentStore) -> None:
    kept, gone, twice = (
        attachment_store.attach(b"kept"),
        attachment_store.attach(b"gone"),
        attachment_store.attach(b"twice"),
    )
    attachment_store.attach(b"twice")
    attachment_store.delete(gone.id)
    attachment_store.delete(twice.id)

    found = attachment_store.collect()

    assert (found.candidate_count, found.deleted_count, found.failed_count, found.reclaimed_bytes) == (1, 1, 0, 4)
    assert (found.expired_count, found.orphan_count, found.dry_run) == (0, 0, False)
    assert attachment_store.count("blobs") == 2
    assert attachment_store.content(kept.id) == b"kept"
    assert attachment_store.audit() == SOUND
    assert attachment_store.collect().candidate_count == 0


def test_a_dry_run_counts_what_a_run_then_deletes_and_deletes_nothing(attachment_store: AttachmentStore) -> None:
    for number in range(5):
        attachment_store.delete(attachment_store.attach(b"garbage %d" % number).id)
    expiring = attachment_store.attach(b"expiring", expires_at="2999-01-01")
    attachment_store.attach(b"shared", expires_at="2999-01-01")
    attachment_store.attach(b"shared")
    attachment_store.write(
        "UPDATE attachments SET created_at = :then, expires_at = :then WHERE expires_at > ''", then=LONG_AGO
    )
    orphan(attachment_store, b"orphan")

    dry = attachment_store.collect(dry_run=True, batch_size=1)
    after = (attachment_store.count("blobs"), attachment_store.count("attachments"), len(attachment_store.keys()))
    run = attachment_store.collect(batch_size=2)

    assert after == (7, 3, 8)
    assert dry.dry_run
    # The garbage, what expired, and the orphan.
    assert (dry.candidate_count, dry.deleted_count, dry.reclaimed_bytes) == (6, 0, 5 * 9 + 8 + 6)
    assert (run.candidate_count, run.deleted_count, run.reclaimed_bytes) == (6, 6, 5 * 9 + 8 + 6)
    assert (dry.expired_count, dry.orphan_count) == (run.expired_count, run.orphan_count) == (2, 1)
    assert expiring.id in {event.entity_id for event in attachment_store.events(REMOVED)}
    assert attachment_store.count("attachments") == 1
    assert attachment_store.audit() == SOUND


def test_the_grace_period_counts_from_the_last_upload(attachment_store: AttachmentStore) -> None:
    old, young = attachment_store.attach(b"old"), attachment_store.attach(b"young")
    attachment_store.write("UPDATE blobs SET uploaded_at = :then", then=LONG_AGO)
    attachment_store.delete(attachment_store.attach(b"young").id)
    attachment_store.delete(old.id)
    attachment_store.delete(young.id)

    assert attachment_store.collect(dry_run=True, grace_seconds=3600).candidate_count == 1
    assert attachment_store.collect(grace_seconds=3600).deleted_count == 1
    assert attachment_store.rows("SELECT size_bytes FROM blobs") == [(len(b"young"),)]


def test_orphans_are_deleted_when_old_enough_and_their_bytes_are_counted(attachment_store: AttachmentStore) -> None:
    orphan(attachment_store, b"orphan")

    young = attachment_store.collect(grace_seconds=3600, orphan_seconds=3600)
    assert (young.orphan_count, young.reclaimed_bytes) == (0, 0)
    assert attachment_store.keys() != set()
    old = attachment_store.collect()
    assert (old.orphan_count, old.reclaimed_bytes, old.deleted_count) == (1, 6, 0)
    assert attachment_store.keys() == set()


def abandoned(attachment_store: AttachmentStore, size: int) -> Path:
    """The temporary file of an upload whose process died: its lock is free, and the file was not removed."""
    temp_file = attachment_store.store.temp_file()
    temp_file.write(b"x" * max(size, GATHER_BYTES))
    os.truncate(temp_file.path, size)
    os.close(temp_file.descriptor)
    os.close(temp_file.folder)
    temp_file.folder = temp_file.descriptor = -1
    return temp_file.path


def test_temporary_files_of_dead_processes_are_removed_and_those_of_living_ones_are_not(
    attachment_store: AttachmentStore,
) -> None:
    dead = [abandoned(attachment_store, size) for size in (100, 20_000)]
    with attachment_store.store.temp_file() as living:
        living.write(b"y" * GATHER_BYTES)
        os.utime(living.path, (0, 0))

        # The lock of the living is proof, so they need no hour of their own.
        dry = attachment_store.collect(dry_run=True, orphan_seconds=3600)
        assert all(path.exists() for path in (*dead, living.path))
        run = attachment_store.collect(orphan_seconds=3600)

        assert not any(path.exists() for path in dead)
        assert living.path.exists()
    for found in (dry, run):
        assert (found.orphan_count, found.reclaimed_bytes) == (2, 20_100)
        assert (found.candidate_count, found.deleted_count, found.failed_count) == (0, 0, 0)
    again = attachment_store.collect(dry_run=True)
    assert (again.orphan_count, again.reclaimed_bytes) == (0, 0)


def test_temporary_files_stay_for_the_grace_period(attachment_store: AttachmentStore) -> None:
    young, old = abandoned(attachment_store, 10), abandoned(attachment_store, 20)
    os.utime(old, (time.time() - 3700,) * 2)

    dry, run = (attachment_store.collect(dry_run=dry_run, grace_seconds=3600) for dry_run in (True, False))

    assert (dry.orphan_count, dry.reclaimed_bytes) == (run.orphan_count, run.reclaimed_bytes) == (1, 20)
    assert (young.exists(), old.exists()) == (True, False)


@pytest.mark.parametrize("backend", ["sqlite-folder"])
def test_a_second_link_to_stored_bytes_is_removed_and_reclaims_nothing(
    attachment_store: AttachmentStore,
) -> None:
    """An upload that was killed right before its end has already linked its temporary file."""
    kept, orphaned = attachment_store.attach(b"kept"), orphan(attachment_store, b"orphan")
    ((key,),) = attachment_store.rows("SELECT blob_key FROM blobs")
    for number, linked in enumerate((key, orphaned)):
        os.link(attachment_store.blobs_folder / linked, attachment_store.blobs_folder / "tmp" / f"{number}.part")

    dry, run = attachment_store.collect(dry_run=True), attachment_store.collect()

    assert (dry.orphan_count, dry.reclaimed_bytes) == (run.orphan_count, run.reclaimed_bytes) == (1, 6)
    assert list((attachment_store.blobs_folder / "tmp").iterdir()) == []
    assert attachment_store.content(kept.id) == b"kept"


@pytest.mark.parametrize("backend", ["sqlite-folder"])
def test_a_temporary_file_that_cannot_be_removed_counts_as_failed_and_the_others_are_removed(
    attachment_store: AttachmentStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, other = abandoned(attachment_store, 10), abandoned(attachment_store, 20)
    unlink = os.unlink

    def refusing(name: str, *, dir_fd: int | None = None) -> None:
        if name == stuck.name:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    found = attachment_store.collect()

    assert (found.orphan_count, found.reclaimed_bytes, found.failed_count) == (1, 20, 1)
    assert (stuck.exists(), other.exists()) == (True, False)
    assert stuck.name in caplog.text


@pytest.mark.parametrize("backend", ["sqlite-folder"])
def test_a_discarded_blob_stays_in_the_trash_for_the_grace_period(attachment_store: AttachmentStore) -> None:
    trash = attachment_store.blobs_folder / "trash"
    attachment_store.delete(attachment_store.attach(b"1").id)
    attachment_store.write("UPDATE blobs SET uploaded_at = :then", then=LONG_AGO)
    attachment_store.collect(grace_seconds=3600)
    (kept,) = trash.iterdir()
    assert kept.read_bytes() == b"1"

    attachment_store.collect()

    assert list(trash.iterdir()) == []


@pytest.mark.parametrize("backend", ["sqlite-folder"])
def test_a_folder_in_place_of_a_blob_does_not_end_the_run(attachment_store: AttachmentStore) -> None:
    planted, innocent = attachment_store.attach(b"planted"), attachment_store.attach(b"innocent")
    ((key,),) = attachment_store.rows("SELECT blob_key FROM blobs WHERE id = :id", id=planted.blob_id or "")
    (attachment_store.blobs_folder / key).unlink()
    (attachment_store.blobs_folder / key).mkdir()
    for one in (planted, innocent):
        attachment_store.delete(one.id)

    found = [attachment_store.collect() for _ in range(2)]

    assert [(one.deleted_count, one.failed_count) for one in found] == [(2, 1), (0, 1)]
    assert [path.is_dir() for path in (attachment_store.blobs_folder / "trash").iterdir()] == [True]
    assert attachment_store.audit() == SOUND


@pytest.mark.parametrize("batch_size", [1, 3, 500], ids=str)
def test_a_blob_that_cannot_be_deleted_does_not_keep_the_others(
    attachment_store: AttachmentStore, batch_size: int
) -> None:
    made = [attachment_store.attach(b"garbage %d" % number) for number in range(5)]
    stuck = attachment_store.rows("SELECT blob_key FROM blobs WHERE id = :id", id=made[2].blob_id or "")[0][0]
    for one in made:
        attachment_store.delete(one.id)

    found = attachment_store.collect(
        store=failing_store(attachment_store.store, lambda key: key == stuck), batch_size=batch_size
    )

    assert found.candidate_count == 5
    assert (found.deleted_count, found.failed_count) == (4, 1)
    assert attachment_store.keys() == {stuck}
    assert attachment_store.count("blobs") == 0
    assert attachment_store.collect().orphan_count == 1
    assert attachment_store.audit() == SOUND


def test_an_orphan_that_cannot_be_swept_does_not_keep_the_others(attachment_store: AttachmentStore) -> None:
    keys = sorted(orphan(attachment_store, b"orphan %d" % number, f"bl-orphan{number:02}") for number in range(5))

    found = attachment_store.collect(store=failing_store(attachment_store.store, lambda key: key == keys[1]))

    assert (found.orphan_count, found.failed_count) == (4, 1)
    assert attachment_store.keys() == {keys[1]}


def test_a_store_that_is_down_is_not_retried_forever(attachment_store: AttachmentStore) -> None:
    asked: list[str] = []

    def fails(key: str) -> bool:
        asked.append(key)
        return True

    for number in range(15):
        attachment_store.delete(attachment_store.attach(b"%d" % number).id)

    with pytest.raises(StoreUnavailable):
        attachment_store.collect(store=failing_store(attachment_store.store, fails), batch_size=3)

    assert len(asked) == FAILURES_MAX
    assert attachment_store.count("blobs") == 3
    found = attachment_store.collect()
    assert (found.deleted_count, found.orphan_count) == (3, 12)


@pytest.mark.parametrize("batch_size", [1, 500], ids=str)
def test_a_blob_that_is_used_again_is_neither_garbage_nor_a_failure(
    attachment_store: AttachmentStore, batch_size: int
) -> None:
    for number in range(3):
        attachment_store.delete(attachment_store.attach(b"garbage %d" % number).id)

    def attach_again() -> None:
        attachment_store.attach(b"garbage 1")
        # As if the clocks of two machines differed: it is the attachment that protects it, not its age.
        attachment_store.write("UPDATE blobs SET uploaded_at = :then", then=LONG_AGO)

    with at_statement(attachment_store.database, "FROM blobs WHERE id >", attach_again):
        found = attachment_store.collect(batch_size=batch_size)

    assert found.failed_count == 0
    assert found.deleted_count == 2
    assert attachment_store.count("blobs") == 1
    assert attachment_store.audit() == SOUND


def test_a_row_that_cannot_be_deleted_does_not_keep_the_others(attachment_store: AttachmentStore) -> None:
    def locked() -> None:
        raise StoreUnavailable("somebody holds it")

    def needed() -> None:
        raise IntegrityError("an attachment came between", None, Exception())

    for act, failed in ((locked, 1), (needed, 0)):
        for number in range(5):
            attachment_store.delete(attachment_store.attach(b"garbage %d" % number).id)
        # First all of them together, then one of them alone.
        with (
            at_statement(attachment_store.database, "DELETE FROM blobs", act, point="before"),
            at_statement(attachment_store.database, "DELETE FROM blobs", act, point="before"),
        ):
            found = attachment_store.collect()
        assert (found.candidate_count, found.deleted_count, found.failed_count) == (5, 4, failed)
        assert attachment_store.collect().deleted_count == 1
        assert attachment_store.audit() == SOUND


def test_blobs_of_another_store_are_left_alone(attachment_store: AttachmentStore) -> None:
    """A hub that was moved from a folder to S3, or back, still has rows of the old place."""
    attachment_store.delete(attachment_store.attach(b"1").id)
    attachment_store.write(
        "UPDATE blobs SET storage_backend = 'elsewhere', blob_key = 'x', uploaded_at = :then", then=LONG_AGO
    )

    found = attachment_store.collect(grace_seconds=60)

    assert (found.candidate_count, found.failed_count) == (0, 0)
    assert attachment_store.count("blobs") == 1


@pytest.mark.parametrize("backend", ["sqlite-folder"])
def test_uploads_in_progress_are_not_swept_however_old(attachment_store: AttachmentStore) -> None:
    with attachment_store.store.temp_file() as temp_file:
        temp_file.write(b"slow" * 100_000)
        os.utime(temp_file.path, (0, 0))
        attachment_store.collect()
        temp_file.finish()
        key = attachment_store.store.put(temp_file, "bl-slow0000")

    assert attachment_store.store.size(key) == 400_000


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_the_time_for_each_deleted_blob_is_constant(attachment_store: AttachmentStore) -> None:
    def collected(count: int) -> float:
        rows = [{"id": f"bl-{n:08}", "sha256": f"{n:064x}", "key": f"sha256/{n:064x}"} for n in range(count)]
        with attachment_store.database.write() as tx:
            tx.exec_driver_sql("DELETE FROM blobs")
            insert = "INSERT INTO blobs VALUES (:id, :sha256, 0, 'local_cas', :key, '2020', '2020')"
            tx.execute(text(insert), rows)
        started = time.perf_counter()
        # The bytes are missing.
        store = without(attachment_store.store, "discard")
        assert attachment_store.collect(store=store, batch_size=200).deleted_count == count
        return (time.perf_counter() - started) / count

    few = min(collected(500) for _ in range(3))
    many = collected(10_000)

    # Work that grew with the table would take twenty times as long for each.
    assert many < 8 * few


def artifact(attachment_store: AttachmentStore, key: str, content: bytes) -> None:
    values = {"key": key, "sha256": hashlib.sha256(content).hexdigest(), "at": now_text()}
    with attachment_store.database.write() as tx:
        tx.execute(
            text("""
                INSERT INTO artifacts (principal, tenant_id, session_key, name, input_fp, dep_fp, blob_sha256, blob_key,
                                       created_at)
                VALUES ('p', 't', 's', 'n', 'i', 'd', :sha256, :key, :at)
            """),
            values,
        )


def test_bytes_shared_by_an_artifact_and_an_attachment_stay_without_the_attachment(
    attachment_store: AttachmentStore,
) -> None:
    attached = attachment_store.attach(b"used twice")
    ((key,),) = attachment_store.rows("SELECT blob_key FROM blobs")
    artifact(attachment_store, key, b"used twice")
    attachment_store.delete(attached.id)

    counted, collected = attachment_store.collect(dry_run=True), attachment_store.collect()

    assert (counted.candidate_count, collected.deleted_count, collected.orphan_count) == (0, 0, 0)
    assert b"".join(attachment_store.store.read(key)) == b"used twice"
    with attachment_store.database.write() as tx:
        tx.execute(text("DELETE FROM artifacts"))
    assert attachment_store.collect().deleted_count == 1
    assert attachment_store.keys() == set()


def test_the_bytes_of_an_artifact_are_not_garbage_while_its_row_exists(attachment_store: AttachmentStore) -> None:
    artifact(attachment_store, orphan(attachment_store, b"a large artifact"), b"a large artifact")

    assert attachment_store.collect().orphan_count == 0
    with attachment_store.database.write() as tx:
        tx.execute(text("DELETE FROM artifacts"))
    assert attachment_store.collect().orphan_count == 1
