"""Attachments of both kinds: what is stored, shown, told and deleted."""

from __future__ import annotations

import datetime
import json
import re
import secrets
from typing import Any

import pytest
from tests.tasks.meddling import meddled
from tests.tasks.test_task import keyed
from tests.tasks.vault import SOUND, Vault
from tests.waiting import until

from onceward import tasks
from onceward.blobs.archive import ArchiveLimits
from onceward.db.clock import now_text
from onceward.db.request import RequestKey
from onceward.errors import Expired, InvalidInput, NotFound, TooLarge
from onceward.tasks import UploadRules
from onceward.tasks.attachment import ADDED, REMOVED

FUTURE = "2999-12-31"


def test_an_upload_is_stored_shown_and_read_again(vault: Vault) -> None:
    made = vault.attach(
        b'{"a": 1}\n', kind=" Spec ", title=" A spec ", filename="../etc/a.json", labels=("B", "a", "b"),
        meta={"k": [1, None]}, expires_at=FUTURE, media_type="application/json",
    )  # fmt: skip

    assert re.fullmatch("at-[0-9a-z]{8}", made.id)
    assert re.fullmatch("bl-[0-9a-z]{8}", made.blob_id or "")
    assert (made.kind, made.title, made.filename, made.labels) == ("spec", "A spec", "a.json", ("a", "b"))
    assert (made.media_type, made.media_type_source) == ("application/json", "declared")
    assert (made.source_type, made.size_bytes) == ("managed_blob", 9)
    assert made.expires_at == "2999-12-31T23:59:59.999999Z"
    assert made.meta["k"] == [1, None]
    assert vault.get(made.id) == made
    assert vault.content(made.id) == b'{"a": 1}\n'


def test_what_is_shown_leaves_out_what_is_empty_but_for_the_labels(vault: Vault) -> None:
    shown = vault.link(repo_path="docs/a.md").shown()

    assert set(shown) == {
        "id", "task_id", "kind", "source_type", "media_type", "media_type_source", "repo_path", "created_at",
        "updated_at", "labels",
    }  # fmt: skip
    assert shown["labels"] == []


def test_links_are_stored_as_they_are_and_may_come_twice(vault: Vault) -> None:
    url = "https://example.com/a.pdf?x=1"
    first, second = vault.link(external_url=url), vault.link(external_url=url)
    path = vault.link(repo_path="docs/a.md", media_type="Text/Markdown; charset=utf-8", expires_at=FUTURE)
    unknown = vault.link(repo_path="Makefile.zzz")

    assert first.id != second.id
    assert (first.external_url, first.media_type, first.media_type_source) == (url, "application/pdf", "inferred")
    assert (path.repo_path, path.media_type, path.media_type_source) == ("docs/a.md", "text/markdown", "declared")
    assert (unknown.media_type, unknown.media_type_source) == (None, "unknown")
    with vault.database.read() as tx:
        assert tasks.list_attachments(tx, "t1").items == [unknown, path, second, first]


def test_a_link_is_one_of_two_things_and_has_no_content(vault: Vault) -> None:
    with pytest.raises(InvalidInput, match="one of them"):
        vault.link(external_url="https://example.com", repo_path="a")
    with pytest.raises(InvalidInput, match="one of them"):
        vault.link()
    refused: list[dict[str, Any]] = [
        {"external_url": "ftp://a.b"},
        {"repo_path": "../a"},
        {"repo_path": "a", "kind": "x"},
    ]
    for wrong in refused:
        with pytest.raises(InvalidInput):
            vault.link(**wrong)
    link = vault.link(repo_path="a")
    with pytest.raises(InvalidInput, match="is a link"):
        vault.content(link.id)
    assert vault.count("attachments") == 1


def test_what_is_found_out_of_bytes_is_not_for_a_link_to_say(vault: Vault) -> None:
    link = vault.link(repo_path="a", meta={"sniffed_media_type": "text/html", "archive": {"entries": 1}, "own": 1})

    assert link.meta == {"own": 1}


def test_one_content_is_kept_once_however_often_it_is_attached(vault: Vault) -> None:
    vault.task("t2")
    made = [vault.attach(b"same", task_id=task_id) for task_id in ("t1", "t2", "t1")]
    other = vault.attach(b"other")

    assert len({one.id for one in made}) == 3
    assert len({one.blob_id for one in made}) == 1
    assert vault.count("blobs") == len(vault.keys()) == 2
    assert vault.count("attachments") == 4
    assert vault.content(other.id) == b"other"
    assert vault.audit() == SOUND


def test_nothing_at_all_can_be_attached_too(vault: Vault) -> None:
    made = vault.attach(b"", filename="empty.txt")

    assert made.size_bytes == 0
    assert vault.content(made.id) == b""


def test_the_event_comes_with_the_rows_or_not_at_all(vault: Vault) -> None:
    def taken_back() -> None:
        with vault.database.write() as tx:
            tasks.create_link_attachment(tx, "t1", tasks.NewAttachment("spec"), repo_path="a")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        taken_back()
    assert (vault.count("attachments"), vault.events()) == (0, [])

    made = vault.attach(b"1", labels=("b", "a"))
    vault.delete(made.id)

    added, removed = vault.events()
    assert (added.name, added.entity_type, added.entity_id, added.topic_id) == (ADDED, "attachment", made.id, None)
    assert (removed.name, removed.entity_id) == (REMOVED, made.id)
    assert json.loads(added.data) == json.loads(removed.data) == {"attachment": made.shown()}
    assert json.loads(added.data)["attachment"]["labels"] == ["a", "b"]


def test_labels_are_replaced_and_the_rest_stays(vault: Vault) -> None:
    made = vault.attach(b"1", labels=("old", "kept"))
    with vault.database.write() as tx:
        changed = tasks.replace_labels(tx, made.id, [" Kept ", "New", "new"])
    with vault.database.write() as tx:
        with pytest.raises(InvalidInput):
            tasks.replace_labels(tx, made.id, ["two words"])
        with pytest.raises(NotFound):
            tasks.replace_labels(tx, "at-none", ["x"])

    assert changed == vault.get(made.id)
    assert changed.labels == ("kept", "new")
    assert changed.updated_at > made.updated_at
    with vault.database.write() as tx:
        assert tasks.replace_labels(tx, made.id, []).labels == ()


def test_deleting_an_attachment_leaves_its_blob_to_the_collection(vault: Vault) -> None:
    made = vault.attach(b"1", labels=("x",))
    vault.delete(made.id)

    with pytest.raises(NotFound):
        vault.get(made.id)
    with pytest.raises(NotFound):
        vault.delete(made.id)
    assert (vault.count("attachment_labels"), vault.count("blobs"), len(vault.keys())) == (0, 1, 1)


def test_what_has_expired_is_listed_and_not_given_out(vault: Vault) -> None:
    made = vault.attach(b"1", expires_at=FUTURE)
    with pytest.raises(InvalidInput, match="future"):
        vault.attach(b"1", expires_at="2020-01-01")
    assert "expired" not in made.shown()
    vault.write("UPDATE attachments SET expires_at = :now, created_at = :now", now=now_text())

    with pytest.raises(Expired):
        vault.content(made.id)
    with vault.database.read() as tx:
        (listed,) = tasks.list_attachments(tx, "t1").items
    assert listed.shown()["expired"] is True


def test_the_same_request_again_makes_no_second_attachment(vault: Vault) -> None:
    uploads = [vault.add(b"1", request=keyed()) for _ in range(2)]
    links = [vault.link(repo_path="a", request=keyed("k2")) for _ in range(2)]
    later = vault.add(b"1", request=RequestKey(keyed().digest, "9999"))

    assert [one.is_new for one in uploads] == [True, False]
    assert uploads[0].attachment == uploads[1].attachment
    assert links[0] == links[1]
    assert later.is_new
    assert (vault.count("attachments"), len(vault.events(ADDED))) == (3, 3)


def test_the_same_request_at_once_makes_one_attachment(vault: Vault) -> None:
    """Its first run has died without its client knowing, and goes on all the same."""
    first = []
    store = meddled(vault.store, after_put=lambda: first.append(vault.add(b"1", request=keyed())))

    second = vault.add(b"1", request=keyed(), store=store)

    assert (first[0].is_new, second.is_new) == (True, False)
    assert first[0].attachment == second.attachment
    assert vault.collect().orphan_count == 0
    assert vault.audit() == SOUND


def test_an_id_that_is_taken_is_drawn_again(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    randbelow = secrets.randbelow
    drawn: list[int] = []
    monkeypatch.setattr(secrets, "randbelow", lambda end: drawn.pop(0) if drawn else randbelow(end))
    a, b = int("a" * 8, 36), int("b" * 8, 36)

    drawn += [a, a]
    first = vault.attach(b"1")
    drawn += [a]
    link = vault.link(repo_path="a")
    # The blob's, which needs a second try, and then the attachment's.
    drawn += [a, b, a]
    second = vault.attach(b"2")

    assert (first.id, first.blob_id) == ("at-aaaaaaaa", "bl-aaaaaaaa")
    assert second.blob_id == "bl-bbbbbbbb"
    assert len({first.id, second.id, link.id}) == 3
    assert vault.content(second.id) == b"2"
    assert vault.audit() == SOUND


def test_what_is_refused_leaves_no_row_and_no_bytes(vault: Vault) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(32)
    only_images = UploadRules(allowed_media_types=["image/*"])
    for content, rules, said in (
        (png, UploadRules(), {"media_type": "image/jpeg"}),
        (b"text", only_images, {}),
        (b"text", only_images, {"media_type": "image/svg+xml"}),
        (b"text", only_images, {"filename": "a.svg"}),
        (png, UploadRules(allowed_media_types=["image/png"]), {"media_type": "image/apng"}),
        (b"text", UploadRules(), {"kind": "file"}),
        (b"text", UploadRules(), {"labels": ("a b",)}),
        (b"text", UploadRules(), {"expires_at": "tomorrow"}),
        (b"text", UploadRules(), {"filename": "x" * 300}),
        (b"PK\x05\x06" + b"\xff" * 18, UploadRules(archive=ArchiveLimits()), {"media_type": "application/zip"}),
    ):
        with pytest.raises(InvalidInput):
            vault.attach(content, rules=rules, **said)
    with pytest.raises(TooLarge):
        vault.attach(b"text", meta={"k": "x" * 20_000})

    assert vault.attach(png, rules=only_images).media_type == "image/png"
    assert vault.count("attachments") == vault.count("blobs") == len(vault.keys()) == 1
    assert vault.store.sweep_temporary(0).removed_count == 0


def test_what_expires_while_it_waits_to_be_attached_is_refused(vault: Vault) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.5)

    def wait() -> None:
        until(lambda: datetime.datetime.now(datetime.UTC) > soon)

    with pytest.raises(InvalidInput, match="expires_at"):
        vault.attach(b"late", expires_at=soon.isoformat(), store=meddled(vault.store, after_put=wait))

    assert (vault.count("attachments"), vault.count("blobs"), vault.events()) == (0, 0, [])
