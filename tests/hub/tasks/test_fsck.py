"""fsck: it finds every kind of damage and quarantines it, and a new upload repairs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore
from tests.hub.tasks.race_injection import at_statement, intercepted

from onceward.errors import StoreUnavailable
from onceward.hub import tasks
from onceward.hub.blobs import BlobMissing
from onceward.hub.tasks.fsck import ELSEWHERE, MISSING, UNREADABLE, WRONG_CONTENT, WRONG_SIZE

CONTENT = b"what was sent, byte for byte"
OTHER = b"another content"


def key_of(attachment_store: AttachmentStore, blob_id: str | None) -> str:
    return str(attachment_store.rows("SELECT blob_key FROM blobs WHERE id = :id", id=blob_id or "")[0][0])


def overwrite(attachment_store: AttachmentStore, key: str, content: bytes) -> None:
    """Change the file of a blob without the store."""
    if attachment_store.blobs_url.startswith("file:"):
        path = attachment_store.blobs_folder / key
        path.chmod(0o600)
        path.write_bytes(content)
        return
    import obstore  # noqa: PLC0415  # only for S3

    from onceward.hub.blobs.s3 import S3Blobs  # noqa: PLC0415

    assert isinstance(attachment_store.store, S3Blobs)
    obstore.put(attachment_store.store._store, key, content)


def truncate(attachment_store: AttachmentStore, key: str) -> None:
    overwrite(attachment_store, key, CONTENT[:-1])


def flip_bit(attachment_store: AttachmentStore, key: str) -> None:
    overwrite(attachment_store, key, bytes([CONTENT[0] ^ 1]) + CONTENT[1:])


def delete_bytes(attachment_store: AttachmentStore, key: str) -> None:
    attachment_store.store.discard(key)


DAMAGE: dict[str, tuple[Callable[[AttachmentStore, str], None], str]] = {
    "truncated": (truncate, WRONG_SIZE),
    "flipped": (flip_bit, WRONG_CONTENT),
    "lost": (delete_bytes, MISSING),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_quarantined_and_repaired_by_a_new_upload(
    attachment_store: AttachmentStore, damage: str
) -> None:
    harm, problem = DAMAGE[damage]
    hurt, fine = [attachment_store.attach(CONTENT), attachment_store.attach(CONTENT)], attachment_store.attach(OTHER)
    key = key_of(attachment_store, hurt[0].blob_id)
    harm(attachment_store, key)

    (found,) = tasks.check_blobs(attachment_store.database, attachment_store.store, quarantine=False)
    assert (found.problem, found.blob_id, found.blob_key, found.quarantined) == (problem, hurt[0].blob_id, key, False)
    assert found.attachments == tuple(sorted(one.id for one in hurt))
    (aside,) = tasks.check_blobs(attachment_store.database, attachment_store.store, quarantine=True)
    assert aside.quarantined == (problem != MISSING)
    assert attachment_store.store.size(key) is None
    assert attachment_store.damage() == {found.blob_id: MISSING}

    attachment_store.attach(CONTENT)

    assert attachment_store.damage() == {}
    assert [attachment_store.content(one.id) for one in (*hurt, fine)] == [CONTENT, CONTENT, OTHER]
    assert attachment_store.count("blobs") == 2
    assert attachment_store.audit() == SOUND


def test_a_truncated_blob_is_repaired_by_a_new_upload_without_fsck(attachment_store: AttachmentStore) -> None:
    hurt = attachment_store.attach(CONTENT)
    truncate(attachment_store, key_of(attachment_store, hurt.blob_id))

    attachment_store.attach(CONTENT)

    assert attachment_store.content(hurt.id) == CONTENT
    attachment_store.collect()
    assert attachment_store.audit() == SOUND


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_a_blob_with_changed_bytes_is_repaired_by_a_new_upload_without_fsck(
    attachment_store: AttachmentStore,
) -> None:
    """Only in a folder: an object store has its own checksums."""
    hurt = attachment_store.attach(CONTENT)
    flip_bit(attachment_store, key_of(attachment_store, hurt.blob_id))

    attachment_store.attach(CONTENT)

    assert attachment_store.content(hurt.id) == CONTENT
    assert attachment_store.damage(quarantine=False) == {}
    attachment_store.collect()
    assert attachment_store.audit() == SOUND


def test_a_blob_in_another_store_is_reported_and_copied_by_a_new_upload(attachment_store: AttachmentStore) -> None:
    old = attachment_store.attach(CONTENT)
    for key in sorted(attachment_store.keys()):
        attachment_store.store.discard(key)
    attachment_store.write("UPDATE blobs SET storage_backend = 'elsewhere', blob_key = 'x'")
    assert attachment_store.damage(quarantine=True) == {old.blob_id: ELSEWHERE}

    new = attachment_store.attach(CONTENT)

    assert attachment_store.content(old.id) == attachment_store.content(new.id) == CONTENT
    assert attachment_store.audit() == SOUND


def test_fsck_does_not_quarantine_a_blob_that_an_upload_has_just_repaired(attachment_store: AttachmentStore) -> None:
    hurt = attachment_store.attach(CONTENT)
    truncate(attachment_store, key_of(attachment_store, hurt.blob_id))
    store = intercepted(attachment_store.store, after_size=lambda: attachment_store.attach(CONTENT))

    found = list(tasks.check_blobs(attachment_store.database, store, quarantine=True))

    assert found == []
    assert attachment_store.content(hurt.id) == CONTENT


def test_a_blob_deleted_by_gc_during_fsck_is_not_missing(attachment_store: AttachmentStore) -> None:
    attachment_store.delete(attachment_store.attach(CONTENT).id)

    with at_statement(attachment_store.database, "FROM blobs WHERE id >", attachment_store.collect):
        found = list(tasks.check_blobs(attachment_store.database, attachment_store.store, quarantine=True))

    assert found == []


@pytest.mark.parametrize("backend", ["postgresql-s3"])
def test_a_store_that_is_down_is_reported_and_not_taken_for_damage(attachment_store: AttachmentStore) -> None:
    attachment_store.attach(CONTENT)

    def fail() -> None:
        raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        list(
            tasks.check_blobs(
                attachment_store.database, intercepted(attachment_store.store, before_size=fail), quarantine=True
            )
        )


@pytest.mark.parametrize("backend", ["sqlite-folder"])
def test_a_planted_link_is_never_followed_and_does_not_stop_fsck(
    attachment_store: AttachmentStore, tmp_path: Path
) -> None:
    made = [attachment_store.attach(b"content %d" % number) for number in range(4)]
    secret = tmp_path / "secret"
    secret.write_bytes(b"content 0")
    paths = [attachment_store.blobs_folder / key_of(attachment_store, one.blob_id) for one in made]
    paths[0].unlink()
    paths[0].symlink_to(secret)
    paths[1].unlink()
    os.mkfifo(paths[1])
    # A whole folder of them.
    paths[2].parent.rename(tmp_path / "moved")
    paths[2].parent.symlink_to(tmp_path / "moved")

    found = attachment_store.damage()
    aside = {
        one.blob_id: one
        for one in tasks.check_blobs(attachment_store.database, attachment_store.store, quarantine=True)
    }

    assert found == {one.blob_id: UNREADABLE for one in made[:3]}
    assert [aside[str(one.blob_id)].quarantined for one in made[:3]] == [True, True, False]
    for one in made[:3]:
        with pytest.raises((StoreUnavailable, BlobMissing)):
            attachment_store.content(one.id)
    assert attachment_store.content(made[3].id) == b"content 3"
    attachment_store.attach(b"content 0")
    attachment_store.attach(b"content 1")
    with pytest.raises(StoreUnavailable):
        attachment_store.attach(b"content 2")
    assert attachment_store.content(made[0].id) == b"content 0"
    assert secret.read_bytes() == b"content 0"
    paths[2].parent.unlink()
    (tmp_path / "moved").rename(paths[2].parent)
    assert attachment_store.damage() == {}


def test_fsck_reports_its_progress(attachment_store: AttachmentStore) -> None:
    attachment_store.attach(CONTENT)
    attachment_store.attach(OTHER)
    seen: list[int] = []

    assert (
        list(
            tasks.check_blobs(attachment_store.database, attachment_store.store, quarantine=False, progress=seen.append)
        )
        == []
    )
    assert sorted(seen) == sorted([len(CONTENT), len(OTHER)])


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_a_changed_file_without_a_row_is_not_taken_for_its_original(attachment_store: AttachmentStore) -> None:
    with attachment_store.store.temp_file() as temp_file:
        temp_file.write(CONTENT)
        temp_file.finish()
        key = attachment_store.store.put(temp_file, "bl-orphan00")
    flip_bit(attachment_store, key)

    made = attachment_store.attach(CONTENT)

    assert attachment_store.content(made.id) == CONTENT
    assert attachment_store.damage() == {}


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_a_truncated_file_is_reported_before_any_of_it_is_sent(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(CONTENT)
    truncate(attachment_store, key_of(attachment_store, made.blob_id))

    with attachment_store.database.read() as tx:
        content = tasks.open_content(tx, made.id)

    with pytest.raises(StoreUnavailable, match="damaged"):
        content.read(attachment_store.store)


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_moving_the_folder_between_bytes_and_row_loses_nothing(attachment_store: AttachmentStore) -> None:
    blobs = attachment_store.blobs_folder

    def move() -> None:
        (blobs / "sha256").rename(blobs / "moved")
        (blobs / "sha256").mkdir()

    made = attachment_store.attach(CONTENT, store=intercepted(attachment_store.store, after_put=move))

    assert attachment_store.content(made.id) == CONTENT
    assert attachment_store.damage() == {}
