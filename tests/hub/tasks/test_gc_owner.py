"""Blobs belong to one database: another one would delete them all as garbage."""

from __future__ import annotations

import pytest
from tests.hub.tasks.attachment_store import AttachmentStore

from onceward.errors import AlreadyThere
from onceward.hub import tasks


def test_the_first_database_that_asks_is_the_owner_forever(attachment_store: AttachmentStore) -> None:
    owner = attachment_store.store.owner("one")

    assert attachment_store.store.owner("two") == owner
    assert [stored.key for stored in attachment_store.store.keys()] == []  # noqa: SIM118  # not a dictionary's


def test_gc_for_another_database_deletes_nothing(attachment_store: AttachmentStore) -> None:
    attachment_store.add(b"precious")
    attachment_store.store.owner("another log")

    for dry_run in (True, False):
        with pytest.raises(AlreadyThere, match="another database"):
            tasks.gc_blobs(
                attachment_store.database, attachment_store.store, dry_run=dry_run, grace_seconds=0, orphan_seconds=0
            )

    assert len(list(attachment_store.store.keys())) == 1  # not a dictionary's
