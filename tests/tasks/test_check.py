"""The check of what is stored: it finds every kind of damage, puts it aside, and a new upload repairs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tasks.meddling import at_statement, meddled
from tests.tasks.vault import SOUND, Vault

from onceward import tasks
from onceward.blobs import BlobMissing
from onceward.errors import StoreUnavailable
from onceward.tasks.check import ELSEWHERE, MISSING, UNREADABLE, WRONG_CONTENT, WRONG_SIZE

CONTENT = b"what was sent, byte for byte"
OTHER = b"another content"


def key_of(vault: Vault, blob_id: str | None) -> str:
    return str(vault.rows("SELECT blob_key FROM blobs WHERE id = :id", id=blob_id or "")[0][0])


def overwrite(vault: Vault, key: str, content: bytes) -> None:
    """Behind the store's back."""
    if vault.blobs_url.startswith("file:"):
        path = vault.blobs_folder / key
        path.chmod(0o600)
        path.write_bytes(content)
        return
    import obstore  # noqa: PLC0415  # only for S3

    from onceward.blobs.s3 import S3Blobs  # noqa: PLC0415

    assert isinstance(vault.store, S3Blobs)
    obstore.put(vault.store._store, key, content)


def truncate(vault: Vault, key: str) -> None:
    overwrite(vault, key, CONTENT[:-1])


def flip(vault: Vault, key: str) -> None:
    overwrite(vault, key, bytes([CONTENT[0] ^ 1]) + CONTENT[1:])


def lose(vault: Vault, key: str) -> None:
    vault.store.discard(key)


DAMAGE: dict[str, tuple[Callable[[Vault, str], None], str]] = {
    "truncated": (truncate, WRONG_SIZE),
    "flipped": (flip, WRONG_CONTENT),
    "lost": (lose, MISSING),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found_put_aside_and_repaired_by_a_new_upload(vault: Vault, damage: str) -> None:
    harm, problem = DAMAGE[damage]
    hurt, fine = [vault.attach(CONTENT), vault.attach(CONTENT)], vault.attach(OTHER)
    key = key_of(vault, hurt[0].blob_id)
    harm(vault, key)

    (found,) = tasks.check_blobs(vault.database, vault.store, quarantine=False)
    assert (found.problem, found.blob_id, found.blob_key, found.quarantined) == (problem, hurt[0].blob_id, key, False)
    assert found.attachments == tuple(sorted(one.id for one in hurt))
    (aside,) = tasks.check_blobs(vault.database, vault.store, quarantine=True)
    assert aside.quarantined == (problem != MISSING)
    assert vault.store.size(key) is None
    assert vault.damage() == {found.blob_id: MISSING}

    vault.attach(CONTENT)

    assert vault.damage() == {}
    assert [vault.content(one.id) for one in (*hurt, fine)] == [CONTENT, CONTENT, OTHER]
    assert vault.count("blobs") == 2
    assert vault.audit() == SOUND


def test_a_truncated_blob_is_repaired_by_a_new_upload_without_any_check(vault: Vault) -> None:
    hurt = vault.attach(CONTENT)
    truncate(vault, key_of(vault, hurt.blob_id))

    vault.attach(CONTENT)

    assert vault.content(hurt.id) == CONTENT
    vault.collect()
    assert vault.audit() == SOUND


@pytest.mark.parametrize("place", ["sqlite-folder", "postgresql-folder"])
def test_a_file_whose_bytes_were_changed_is_repaired_by_a_new_upload_without_any_check(vault: Vault) -> None:
    """Anybody may change a file; an object store keeps checksums of its own."""
    hurt = vault.attach(CONTENT)
    flip(vault, key_of(vault, hurt.blob_id))

    vault.attach(CONTENT)

    assert vault.content(hurt.id) == CONTENT
    assert vault.damage(quarantine=False) == {}
    vault.collect()
    assert vault.audit() == SOUND


def test_what_lies_in_another_store_is_told_and_comes_here_with_a_new_upload(vault: Vault) -> None:
    old = vault.attach(CONTENT)
    for key in sorted(vault.keys()):
        vault.store.discard(key)
    vault.write("UPDATE blobs SET storage_backend = 'elsewhere', blob_key = 'x'")
    assert vault.damage(quarantine=True) == {old.blob_id: ELSEWHERE}

    new = vault.attach(CONTENT)

    assert vault.content(old.id) == vault.content(new.id) == CONTENT
    assert vault.audit() == SOUND


def test_the_check_does_not_take_away_what_an_upload_has_just_repaired(vault: Vault) -> None:
    hurt = vault.attach(CONTENT)
    truncate(vault, key_of(vault, hurt.blob_id))
    store = meddled(vault.store, after_size=lambda: vault.attach(CONTENT))

    found = list(tasks.check_blobs(vault.database, store, quarantine=True))

    assert found == []
    assert vault.content(hurt.id) == CONTENT


def test_what_was_collected_meanwhile_is_not_missing(vault: Vault) -> None:
    vault.delete(vault.attach(CONTENT).id)

    with at_statement(vault.database, "FROM blobs WHERE id >", vault.collect):
        found = list(tasks.check_blobs(vault.database, vault.store, quarantine=True))

    assert found == []


@pytest.mark.parametrize("place", ["postgresql-s3"])
def test_a_store_that_is_down_is_told_and_not_taken_for_damage(vault: Vault) -> None:
    vault.attach(CONTENT)

    def fail() -> None:
        raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        list(tasks.check_blobs(vault.database, meddled(vault.store, before_size=fail), quarantine=True))


@pytest.mark.parametrize("place", ["sqlite-folder"])
def test_a_planted_link_is_never_followed_and_does_not_stop_the_check(vault: Vault, tmp_path: Path) -> None:
    made = [vault.attach(b"content %d" % number) for number in range(4)]
    secret = tmp_path / "secret"
    secret.write_bytes(b"content 0")
    paths = [vault.blobs_folder / key_of(vault, one.blob_id) for one in made]
    paths[0].unlink()
    paths[0].symlink_to(secret)
    paths[1].unlink()
    os.mkfifo(paths[1])
    # A whole folder of them.
    paths[2].parent.rename(tmp_path / "moved")
    paths[2].parent.symlink_to(tmp_path / "moved")

    found = vault.damage()
    aside = {one.blob_id: one for one in tasks.check_blobs(vault.database, vault.store, quarantine=True)}

    assert found == {one.blob_id: UNREADABLE for one in made[:3]}
    assert [aside[str(one.blob_id)].quarantined for one in made[:3]] == [True, True, False]
    for one in made[:3]:
        with pytest.raises((StoreUnavailable, BlobMissing)):
            vault.content(one.id)
    assert vault.content(made[3].id) == b"content 3"
    vault.attach(b"content 0")
    vault.attach(b"content 1")
    with pytest.raises(StoreUnavailable):
        vault.attach(b"content 2")
    assert vault.content(made[0].id) == b"content 0"
    assert secret.read_bytes() == b"content 0"
    paths[2].parent.unlink()
    (tmp_path / "moved").rename(paths[2].parent)
    assert vault.damage() == {}


def test_the_check_tells_how_far_it_is(vault: Vault) -> None:
    vault.attach(CONTENT)
    vault.attach(OTHER)
    seen: list[int] = []

    assert list(tasks.check_blobs(vault.database, vault.store, quarantine=False, progress=seen.append)) == []
    assert sorted(seen) == sorted([len(CONTENT), len(OTHER)])


@pytest.mark.parametrize("place", ["sqlite-folder", "postgresql-folder"])
def test_a_changed_file_that_no_row_knows_is_not_taken_for_what_it_was(vault: Vault) -> None:
    with vault.store.spool() as spool:
        spool.write(CONTENT)
        spool.finish()
        key = vault.store.put(spool, "bl-orphan00")
    flip(vault, key)

    made = vault.attach(CONTENT)

    assert vault.content(made.id) == CONTENT
    assert vault.damage() == {}


@pytest.mark.parametrize("place", ["sqlite-folder", "postgresql-folder"])
def test_a_file_that_was_cut_short_is_told_before_any_of_it_is_given(vault: Vault) -> None:
    made = vault.attach(CONTENT)
    truncate(vault, key_of(vault, made.blob_id))

    with vault.database.read() as tx:
        content = tasks.open_content(tx, made.id)

    with pytest.raises(StoreUnavailable, match="damaged"):
        content.read(vault.store)


@pytest.mark.parametrize("place", ["sqlite-folder", "postgresql-folder"])
def test_a_folder_that_is_put_elsewhere_between_bytes_and_row_costs_nothing(vault: Vault) -> None:
    blobs = vault.blobs_folder

    def move() -> None:
        (blobs / "sha256").rename(blobs / "moved")
        (blobs / "sha256").mkdir()

    made = vault.attach(CONTENT, store=meddled(vault.store, after_put=move))

    assert vault.content(made.id) == CONTENT
    assert vault.damage() == {}
