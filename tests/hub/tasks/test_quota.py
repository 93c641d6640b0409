"""Stored bytes of each principal: counted in the transaction of the attachment, limited, given back, and checked."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore
from tests.hub.tasks.race_injection import intercepted

from onceward.hub import tasks
from onceward.hub.db.engine import open_database
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks import OverQuota, Quota, quota

ADA, BOB = Quota("ada", 10), Quota("bob", 10)


def used(attachment_store: AttachmentStore) -> dict[str, tuple[int, int]]:
    """Bytes and attachments by principal, as counted. They must equal the sums."""
    with attachment_store.database.read() as tx:
        assert quota.wrong_counters(tx) == []
        found = quota.usage_page(tx, 100).items
    return {one.principal: (one.stored_bytes, one.attachment_count) for one in found}


def test_an_upload_over_the_quota_is_refused_before_its_bytes_are_stored(attachment_store: AttachmentStore) -> None:
    attachment_store.attach(b"123456", quota=ADA)
    before, puts = attachment_store.keys(), list[str]()
    watched = intercepted(attachment_store.store, before_put=lambda: puts.append("put"))

    with pytest.raises(OverQuota, match="5 bytes do not fit into the quota of 'ada': 6 of 10 bytes are used"):
        attachment_store.attach(b"56789", quota=ADA, store=watched)
    assert (attachment_store.keys(), puts) == (before, [])
    attachment_store.attach(b"4444", quota=ADA)
    assert used(attachment_store) == {"ada": (10, 2)}


def test_the_first_upload_is_limited_too(attachment_store: AttachmentStore) -> None:
    with pytest.raises(OverQuota):
        attachment_store.attach(b"x" * 11, quota=ADA)
    assert used(attachment_store) == {}
    assert attachment_store.count("attachments") == 0


def test_each_principal_pays_for_the_same_content(attachment_store: AttachmentStore) -> None:
    """No principal learns from its usage that another one has the same file."""
    mine = attachment_store.attach(b"shared", quota=ADA)
    attachment_store.attach(b"shared", quota=BOB)
    with pytest.raises(OverQuota):
        attachment_store.attach(b"shared", quota=ADA)
    attachment_store.delete(mine.id)

    assert attachment_store.count("blobs") == 1
    assert used(attachment_store) == {"ada": (0, 0), "bob": (6, 1)}


@pytest.mark.parametrize("backend", ["sqlite-folder", "postgresql-folder"])
def test_of_uploads_at_once_only_those_that_fit_pass(attachment_store: AttachmentStore) -> None:
    """Half of them use a second database with its own writer, as in another process."""
    ready = threading.Barrier(6)

    with closing(open_database(attachment_store.database_url)) as second, ThreadPoolExecutor(6) as threads:
        stores = [attachment_store, dataclasses.replace(attachment_store, database=second)]

        def upload(number: int) -> bool:
            ready.wait(10)
            try:
                stores[number % 2].attach(b"%d23" % number, quota=ADA)
            except OverQuota:
                return False
            return True

        passed = sum(threads.map(upload, range(6)))

    assert passed == 3
    assert used(attachment_store) == {"ada": (9, 3)}
    assert attachment_store.audit() == SOUND


def test_bytes_of_an_upload_that_lost_the_race_are_deleted(attachment_store: AttachmentStore) -> None:
    slow = intercepted(attachment_store.store, after_put=lambda: attachment_store.attach(b"faster", quota=ADA))
    with pytest.raises(OverQuota):
        attachment_store.attach(b"slower", quota=ADA, store=slow)

    assert used(attachment_store) == {"ada": (6, 1)}
    assert attachment_store.audit() == SOUND


def test_bytes_of_an_upload_that_lost_the_race_stay_if_another_row_needs_them(
    attachment_store: AttachmentStore,
) -> None:
    def be_faster() -> None:
        attachment_store.attach(b"faster", quota=ADA)
        attachment_store.attach(b"slower", quota=BOB)

    with pytest.raises(OverQuota):
        attachment_store.attach(b"slower", quota=ADA, store=intercepted(attachment_store.store, after_put=be_faster))

    assert used(attachment_store) == {"ada": (6, 1), "bob": (6, 1)}
    assert attachment_store.audit() == SOUND


def test_a_repeated_request_is_counted_once(attachment_store: AttachmentStore) -> None:
    # The second of two runs at once does not know of the first; a retry does.
    unaware, retry = RequestKey("digest", again=False), RequestKey("digest")
    made = [attachment_store.add(b"1234", quota=ADA, request=one) for one in (unaware, unaware, retry)]

    assert [one.is_new for one in made] == [True, False, False]
    assert used(attachment_store) == {"ada": (4, 1)}


def test_every_deletion_gives_the_bytes_back(attachment_store: AttachmentStore) -> None:
    attachment_store.task("t2")
    removed = attachment_store.attach(b"1", quota=ADA)
    attachment_store.attach(b"22", task_id="t2", quota=ADA)
    attachment_store.attach(b"333", task_id="t2", quota=BOB)
    attachment_store.link("t2", external_url="https://example.com/")
    expired = attachment_store.attach(b"4444", quota=ADA, expires_at="2999-01-01")
    attachment_store.attach(b"55555", quota=BOB)
    attachment_store.delete(removed.id)
    with attachment_store.database.write() as tx:
        tasks.delete_task(tx, "t2")
    assert used(attachment_store) == {"ada": (4, 1), "bob": (5, 1)}

    at = {"now": now_text(), "id": expired.id}
    attachment_store.write("UPDATE attachments SET expires_at = :now, created_at = :now WHERE id = :id", **at)
    attachment_store.collect()
    assert used(attachment_store) == {"ada": (0, 0), "bob": (5, 1)}


def test_without_a_limit_bytes_are_counted_all_the_same(attachment_store: AttachmentStore) -> None:
    attachment_store.attach(b"x" * 1000, quota=Quota("ada"))
    attachment_store.attach(b"earlier version")

    assert used(attachment_store) == {"ada": (1000, 1)}


def test_wrong_counters_are_found_and_corrected(attachment_store: AttachmentStore) -> None:
    attachment_store.attach(b"1234", quota=ADA)
    attachment_store.attach(b"1234", quota=BOB)
    attachment_store.write("UPDATE stored_bytes SET stored_bytes = 3 WHERE principal = 'ada'")
    attachment_store.write("DELETE FROM stored_bytes WHERE principal = 'bob'")
    attachment_store.write("INSERT INTO stored_bytes VALUES ('eve', 5, 1)")
    found = quota.check_counters(attachment_store.database, correct=False)
    corrected = quota.check_counters(attachment_store.database, correct=True)

    assert [(one.principal, one.counted_bytes, one.stored_bytes) for one in found] == [
        ("ada", 3, 4),
        ("bob", 0, 4),
        ("eve", 5, 0),
    ]
    assert [(one.principal, one.corrected) for one in corrected] == [("ada", True), ("bob", True), ("eve", True)]
    assert used(attachment_store) == {"ada": (4, 1), "bob": (4, 1), "eve": (0, 0)}
