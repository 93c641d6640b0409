"""Attachments of both kinds: stored, shown, announced and deleted."""

from __future__ import annotations

import datetime
import json
import re
import secrets
from typing import Any

import pytest
from tests.hub.tasks.attachment_store import SOUND, AttachmentStore
from tests.hub.tasks.race_injection import intercepted
from tests.hub.tasks.test_task import keyed
from tests.waiting import until

from onceward.errors import Expired, InvalidInput, NotFound, TooLarge
from onceward.hub import tasks
from onceward.hub.archives import ArchiveLimits
from onceward.hub.db.request_key import RequestKey
from onceward.hub.db.timestamps import now_text
from onceward.hub.tasks import UploadRules
from onceward.hub.tasks.attachment import ADDED, REMOVED

FUTURE = "2999-12-31"


def test_an_upload_is_stored_shown_and_read_back(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(
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
    assert attachment_store.get(made.id) == made
    assert attachment_store.content(made.id) == b'{"a": 1}\n'


def test_empty_fields_are_not_shown_except_the_labels(attachment_store: AttachmentStore) -> None:
    shown = attachment_store.link(repo_path="docs/a.md").json()

    assert set(shown) == {
        "id", "task_id", "kind", "source_type", "media_type", "media_type_source", "repo_path", "created_at",
        "updated_at", "labels",
    }  # fmt: skip
    assert shown["labels"] == []


def test_links_are_stored_unchanged_and_may_be_repeated(attachment_store: AttachmentStore) -> None:
    url = "https://example.com/a.pdf?x=1"
    first, second = attachment_store.link(external_url=url), attachment_store.link(external_url=url)
    path = attachment_store.link(repo_path="docs/a.md", media_type="Text/Markdown; charset=utf-8", expires_at=FUTURE)
    unknown = attachment_store.link(repo_path="Makefile.zzz")

    assert first.id != second.id
    assert (first.external_url, first.media_type, first.media_type_source) == (url, "application/pdf", "inferred")
    assert (path.repo_path, path.media_type, path.media_type_source) == ("docs/a.md", "text/markdown", "declared")
    assert (unknown.media_type, unknown.media_type_source) == (None, "unknown")
    with attachment_store.database.read() as tx:
        assert tasks.list_attachments(tx, "t1").items == [unknown, path, second, first]


def test_a_link_is_a_url_or_a_path_and_has_no_content(attachment_store: AttachmentStore) -> None:
    with pytest.raises(InvalidInput, match="is required, but not both"):
        attachment_store.link(external_url="https://example.com", repo_path="a")
    with pytest.raises(InvalidInput, match="is required, but not both"):
        attachment_store.link()
    refused: list[dict[str, Any]] = [
        {"external_url": "ftp://a.b"},
        {"repo_path": "../a"},
        {"repo_path": "a", "kind": "x"},
    ]
    for wrong in refused:
        with pytest.raises(InvalidInput):
            attachment_store.link(**wrong)
    link = attachment_store.link(repo_path="a")
    with pytest.raises(InvalidInput, match="is a link"):
        attachment_store.content(link.id)
    assert attachment_store.count("attachments") == 1


def test_computed_metadata_cannot_be_set_on_a_link(attachment_store: AttachmentStore) -> None:
    link = attachment_store.link(
        repo_path="a", meta={"sniffed_media_type": "text/html", "archive": {"entries": 1}, "own": 1}
    )

    assert link.meta == {"own": 1}


def test_equal_content_is_stored_once_however_often_it_is_attached(attachment_store: AttachmentStore) -> None:
    attachment_store.task("t2")
    made = [attachment_store.attach(b"same", task_id=task_id) for task_id in ("t1", "t2", "t1")]
    other = attachment_store.attach(b"other")

    assert len({one.id for one in made}) == 3
    assert len({one.blob_id for one in made}) == 1
    assert attachment_store.count("blobs") == len(attachment_store.keys()) == 2
    assert attachment_store.count("attachments") == 4
    assert attachment_store.content(other.id) == b"other"
    assert attachment_store.audit() == SOUND


def test_an_empty_file_can_be_attached(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(b"", filename="empty.txt")

    assert made.size_bytes == 0
    assert attachment_store.content(made.id) == b""


def test_the_event_commits_with_the_rows_or_not_at_all(attachment_store: AttachmentStore) -> None:
    def taken_back() -> None:
        with attachment_store.database.write() as tx:
            tasks.create_link_attachment(tx, "t1", tasks.NewTaskAttachment("spec"), repo_path="a")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        taken_back()
    assert (attachment_store.count("attachments"), attachment_store.events()) == (0, [])

    made = attachment_store.attach(b"1", labels=("b", "a"))
    attachment_store.delete(made.id)

    added, removed = attachment_store.events()
    assert (added.name, added.entity_type, added.entity_id, added.topic_id) == (ADDED, "attachment", made.id, None)
    assert (removed.name, removed.entity_id) == (REMOVED, made.id)
    assert json.loads(added.data) == json.loads(removed.data) == {"attachment": made.json()}
    assert json.loads(added.data)["attachment"]["labels"] == ["a", "b"]


def test_labels_are_replaced_and_the_rest_is_unchanged(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(b"1", labels=("old", "kept"))
    with attachment_store.database.write() as tx:
        changed = tasks.replace_labels(tx, made.id, [" Kept ", "New", "new"])
    with attachment_store.database.write() as tx:
        with pytest.raises(InvalidInput):
            tasks.replace_labels(tx, made.id, ["two words"])
        with pytest.raises(NotFound):
            tasks.replace_labels(tx, "at-none", ["x"])

    assert changed == attachment_store.get(made.id)
    assert changed.labels == ("kept", "new")
    assert changed.updated_at > made.updated_at
    with attachment_store.database.write() as tx:
        assert tasks.replace_labels(tx, made.id, []).labels == ()


def test_deleting_an_attachment_leaves_its_blob_to_gc(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(b"1", labels=("x",))
    attachment_store.delete(made.id)

    with pytest.raises(NotFound):
        attachment_store.get(made.id)
    with pytest.raises(NotFound):
        attachment_store.delete(made.id)
    assert (
        attachment_store.count("attachment_labels"),
        attachment_store.count("blobs"),
        len(attachment_store.keys()),
    ) == (0, 1, 1)


def test_an_expired_attachment_is_listed_and_not_served(attachment_store: AttachmentStore) -> None:
    made = attachment_store.attach(b"1", expires_at=FUTURE)
    with pytest.raises(InvalidInput, match="future"):
        attachment_store.attach(b"1", expires_at="2020-01-01")
    assert "expired" not in made.json()
    attachment_store.write("UPDATE attachments SET expires_at = :now, created_at = :now", now=now_text())

    with pytest.raises(Expired):
        attachment_store.content(made.id)
    with attachment_store.database.read() as tx:
        (listed,) = tasks.list_attachments(tx, "t1").items
    assert listed.json()["expired"] is True


def test_the_same_request_again_makes_no_second_attachment(attachment_store: AttachmentStore) -> None:
    uploads = [attachment_store.add(b"1", request=keyed()) for _ in range(2)]
    links = [attachment_store.link(repo_path="a", request=keyed("k2")) for _ in range(2)]
    later = attachment_store.add(b"1", request=RequestKey(keyed().digest, "9999"))

    assert [one.is_new for one in uploads] == [True, False]
    assert uploads[0].attachment == uploads[1].attachment
    assert links[0] == links[1]
    assert later.is_new
    assert (attachment_store.count("attachments"), len(attachment_store.events(ADDED))) == (3, 3)


def test_the_same_request_concurrently_makes_one_attachment(attachment_store: AttachmentStore) -> None:
    """The client takes its first run for dead, but it continues."""
    first = []
    store = intercepted(
        attachment_store.store, after_put=lambda: first.append(attachment_store.add(b"1", request=keyed()))
    )

    second = attachment_store.add(b"1", request=keyed(), store=store)

    assert (first[0].is_new, second.is_new) == (True, False)
    assert first[0].attachment == second.attachment
    assert attachment_store.collect().orphan_count == 0
    assert attachment_store.audit() == SOUND


def test_an_id_that_is_taken_is_drawn_again(attachment_store: AttachmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    randbelow = secrets.randbelow
    drawn: list[int] = []
    monkeypatch.setattr(secrets, "randbelow", lambda end: drawn.pop(0) if drawn else randbelow(end))
    a, b = int("a" * 8, 36), int("b" * 8, 36)

    drawn += [a, a]
    first = attachment_store.attach(b"1")
    drawn += [a]
    link = attachment_store.link(repo_path="a")
    # The blob's, which needs a second try, and then the attachment's.
    drawn += [a, b, a]
    second = attachment_store.attach(b"2")

    assert (first.id, first.blob_id) == ("at-aaaaaaaa", "bl-aaaaaaaa")
    assert second.blob_id == "bl-bbbbbbbb"
    assert len({first.id, second.id, link.id}) == 3
    assert attachment_store.content(second.id) == b"2"
    assert attachment_store.audit() == SOUND


def test_a_refused_attachment_leaves_no_row_and_no_bytes(attachment_store: AttachmentStore) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(32)
    only_images = UploadRules(allowed_media_types=["image/*"])
    for content, rules, declared in (
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
            attachment_store.attach(content, rules=rules, **declared)
    with pytest.raises(TooLarge):
        attachment_store.attach(b"text", meta={"k": "x" * 20_000})

    assert attachment_store.attach(png, rules=only_images).media_type == "image/png"
    assert attachment_store.count("attachments") == attachment_store.count("blobs") == len(attachment_store.keys()) == 1
    assert attachment_store.store.sweep_temporary(0).removed_count == 0


def test_an_attachment_that_expires_before_its_commit_is_refused(attachment_store: AttachmentStore) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.5)

    def wait() -> None:
        until(lambda: datetime.datetime.now(datetime.UTC) > soon)

    with pytest.raises(InvalidInput, match="expires_at"):
        attachment_store.attach(
            b"late", expires_at=soon.isoformat(), store=intercepted(attachment_store.store, after_put=wait)
        )

    assert (attachment_store.count("attachments"), attachment_store.count("blobs"), attachment_store.events()) == (
        0,
        0,
        [],
    )
