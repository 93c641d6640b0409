"""Blobs belong to one database: another would take them all for garbage."""

from __future__ import annotations

import pytest
from tests.tasks.vault import Vault

from onceward import tasks
from onceward.errors import AlreadyThere


def test_the_first_who_asks_is_the_owner_for_good(vault: Vault) -> None:
    owner = vault.store.owner("one")

    assert vault.store.owner("two") == owner
    assert [stored.key for stored in vault.store.keys()] == []  # noqa: SIM118  # not a dictionary's


def test_a_collection_for_another_database_deletes_nothing(vault: Vault) -> None:
    vault.add(b"precious")
    vault.store.owner("another log")

    for dry_run in (True, False):
        with pytest.raises(AlreadyThere, match="another database"):
            tasks.gc_blobs(vault.database, vault.store, dry_run=dry_run, grace_seconds=0, orphan_seconds=0)

    assert len(list(vault.store.keys())) == 1  # not a dictionary's
