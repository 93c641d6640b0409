"""An upload and the collection meet at every moment that matters, on purpose: no row without bytes, no bytes lost.

Then the same with one step left out, or in the order that is often sketched: it must be seen to break.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import text
from tests.tasks import places
from tests.tasks.meddling import at_statement, meddled, without
from tests.tasks.vault import SOUND, Vault

from onceward.blobs import BlobStore
from onceward.errors import StoreUnavailable
from onceward.tasks import Attachment

CONTENT = b"the same bytes"
# The collection waits for the guard as long as the upload has it. It is given this long to show that it does not.
GLIMPSE_SECONDS = 0.3


@pytest.fixture(params=places.ALL)
def place(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Beside:
    """The collection in a thread of its own, which may have to wait for the upload."""

    def __init__(self, vault: Vault, store: BlobStore | None = None) -> None:
        # In an object store only time protects what is not committed.
        age = 0 if vault.store.backend == "local_cas" else 3600
        self._thread = threading.Thread(target=lambda: vault.collect(store=store, orphan_seconds=age))

    def __call__(self) -> None:
        self._thread.start()
        self._thread.join(GLIMPSE_SECONDS)

    def end(self) -> None:
        self._thread.join()


def garbage(vault: Vault) -> None:
    """The content is there, with its row, and nothing needs it."""
    vault.delete(vault.attach(CONTENT).id)


def orphan(vault: Vault) -> None:
    """The content is there, of old, and has no row."""
    with vault.store.spool() as spool:
        spool.write(CONTENT)
        os.utime(spool.path, (0, 0))
        spool.finish()
        os.utime(spool.path, (0, 0))
        vault.store.put(spool, "bl-orphan00")


def nothing(vault: Vault) -> None:
    assert vault.keys() == set()


FOUND: dict[str, Callable[[Vault], None]] = {"garbage": garbage, "orphan": orphan, "nothing": nothing}
MOMENTS = ("before_size", "after_size", "before_put", "after_put", "inside_guarded", "after_ensure", "outside_guarded")


@pytest.mark.parametrize("found", FOUND)
def test_an_upload_that_meets_the_collection_at_any_moment_has_its_bytes(vault: Vault, found: str) -> None:
    for moment in MOMENTS:
        FOUND[found](vault)
        beside = Beside(vault)
        made = vault.attach(CONTENT, store=meddled(vault.store, **{moment: beside}))
        if beside._thread.ident is None:
            # An upload of nothing known does not ask for sizes, and one of something known puts nothing.
            assert moment in {"before_size", "after_size", "before_put", "after_put"}
        else:
            beside.end()

        assert vault.content(made.id) == CONTENT, moment
        assert vault.audit().broken == [], moment
        vault.delete(made.id)
        vault.collect()
        assert (vault.audit(), vault.keys(), vault.count("blobs")) == (SOUND, set(), 0), moment


def test_a_collection_that_meets_an_upload_at_any_moment_takes_no_bytes_from_it(vault: Vault) -> None:
    for words in ("FROM blobs WHERE id >", "SELECT blob_key FROM blobs"):
        garbage(vault)
        with vault.store.spool() as spool:
            spool.write(b"orphan")
            spool.finish()
            vault.store.put(spool, "bl-orphan00")
        made: list[Attachment] = []
        with at_statement(vault.database, words, lambda made=made: made.append(vault.attach(CONTENT))):  # type: ignore[misc]
            vault.collect(orphan_seconds=0)

        assert vault.content(made[0].id) == CONTENT, words
        assert vault.audit() == SOUND, words
        vault.delete(made[0].id)
        vault.collect()


def test_bytes_that_were_put_in_vain_are_not_taken_from_somebody_else(vault: Vault) -> None:
    """A blob without bytes, whose row is collected while its content is sent again, twice."""
    made = vault.attach(CONTENT)
    for key in sorted(vault.keys()):
        vault.store.discard(key)
    vault.delete(made.id)
    other, broken = [], []
    store = meddled(
        vault.store,
        after_put=vault.collect,
        outside_guarded=lambda: other.append(vault.attach(CONTENT)),
        # It is put again a moment later; who is killed in between does not come to that.
        after_discard=lambda: broken.extend(vault.audit().broken),
    )

    own = vault.attach(CONTENT, store=store)

    assert len(other) == 1
    assert broken == []
    assert vault.content(other[0].id) == vault.content(own.id) == CONTENT
    assert vault.audit().broken == []
    vault.collect()
    assert vault.audit() == SOUND


def test_an_upload_that_cannot_clean_up_behind_itself_is_done_all_the_same(vault: Vault) -> None:
    def fail() -> None:
        raise StoreUnavailable("later")

    store = meddled(vault.store, after_put=lambda: vault.attach(CONTENT), before_discard=fail)

    vault.attach(CONTENT, store=store)

    assert vault.count("attachments") == 2
    vault.collect()
    assert vault.audit() == SOUND
    assert len(vault.keys()) == 1


def test_an_upload_that_brought_back_what_was_just_collected_takes_it_away_again(vault: Vault) -> None:
    garbage(vault)
    made = vault.attach(CONTENT, store=meddled(vault.store, after_size=vault.collect))

    assert vault.content(made.id) == CONTENT
    assert vault.audit() == SOUND


@pytest.mark.parametrize("place", ["postgresql-s3"])
def test_an_upload_that_stood_still_for_an_hour_begins_anew(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes look like nobody's by then. In a folder they are guarded for as long as it takes."""
    hour = [0.0]
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + hour[0])

    def stand_still() -> None:
        hour[0] = 3600.0
        vault.collect(orphan_seconds=0)

    made = vault.attach(CONTENT, store=meddled(vault.store, after_ensure=stand_still))

    assert vault.content(made.id) == CONTENT
    assert vault.audit() == SOUND


# One step left out.


@pytest.mark.parametrize("place", ["sqlite-folder", "postgresql-folder"])
def test_without_making_sure_of_the_name_the_collection_takes_it(vault: Vault) -> None:
    store = meddled(without(vault.store, "ensure"), after_put=vault.collect)

    made = vault.attach(CONTENT, store=store)

    assert vault.audit().broken == [made.id]


@pytest.mark.parametrize("place", ["sqlite-folder", "postgresql-folder"])
def test_without_the_guard_the_collection_takes_the_name_before_the_commit(vault: Vault) -> None:
    store = without(vault.store, "guarded")

    made = vault.attach(CONTENT, store=meddled(store, after_ensure=lambda: vault.collect(store=store)))

    assert vault.audit().broken == [made.id]


def test_in_the_order_that_is_often_sketched_an_attachment_loses_its_bytes(vault: Vault) -> None:
    """Bytes first, and then the row: which by then is needed again."""
    garbage(vault)
    ((blob_id, key),) = vault.rows("SELECT id, blob_key FROM blobs")
    made = vault.attach(CONTENT)

    vault.store.discard(key)
    with pytest.raises(Exception, match=r"(?i)foreign key"), vault.database.write() as tx:
        tx.execute(text("DELETE FROM blobs WHERE id = :id"), {"id": blob_id})

    assert vault.audit().broken == [made.id]
