"""Mails that are files, and files that move or go while they are read."""

from __future__ import annotations

from pathlib import Path

from tests.hub.ingest.backfill.message_archives import file, items, mail, refs

from onceward.hub.ingest.backfill.folders import Maildir, MailFiles
from onceward.hub.ingest.backfill.normalizer import Normalizer


def maildir(folder: Path) -> Path:
    for part in ("cur", "new", "tmp"):
        (folder / part).mkdir()
    return folder


def test_the_mails_of_a_maildir_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    box = maildir(tmp_path)
    file(box, "new/1794798003.b.host", mail(3))
    file(box, "cur/1794798001.a.host:2,S", mail(1))
    file(box, "cur/1794798002.a.host:2,", mail(2))
    file(box, "tmp/1794798000.a.host", mail(0))
    source = Maildir(box, Normalizer())

    found = items(source)

    assert refs(found) == [f"<{number}@example.com>" for number in (1, 2, 3)]
    assert [item.where for item in found] == [
        "cur/1794798001.a.host:2,S",
        "cur/1794798002.a.host:2,",
        "new/1794798003.b.host",
    ]
    assert refs(items(source, found[0].position)) == refs(found)[1:]
    assert found[-1].done == source.total


def test_a_mail_that_moves_to_cur_during_the_run_is_found(tmp_path: Path) -> None:
    box = maildir(tmp_path)
    new = file(box, "new/1794798001.[a].host", mail(1))
    found = items(Maildir(box, Normalizer()))

    new.rename(box / "cur" / f"{new.name}:2,S")

    assert refs(found) == ["<1@example.com>"]


def test_a_mail_that_is_deleted_during_the_run_fails_alone(tmp_path: Path) -> None:
    box = maildir(tmp_path)
    file(box, "cur/1794798001.a.host:2,S", mail(1)).unlink()
    gone = file(box, "cur/1794798002.a.host:2,S", mail(2))
    file(box, "cur/1794798003.a.host:2,S", mail(3))
    found = items(Maildir(box, Normalizer()))

    gone.unlink()

    refused, there = refs(found)
    assert "cannot be read: No such file" in refused
    assert there == "<3@example.com>"


def test_the_file_name_gives_the_time_of_a_mail_without_a_date(tmp_path: Path) -> None:
    box = maildir(tmp_path)
    file(box, "cur/1794798001.a.host:2,S", mail(1))
    (item,) = items(Maildir(box, Normalizer()))
    payload = item.payload()

    assert payload is not None
    assert isinstance(payload["metadata"], dict)
    assert payload["metadata"]["source_time"] == "2026-11-16T03:00:01.000000Z"


def test_a_folder_of_mails_is_read_at_any_depth_and_resumes_after_any_mail(tmp_path: Path) -> None:
    for number, name in enumerate(["a.eml", "a/b.eml", "b.eml", "b/a/x.eml", "c.eml"]):
        file(tmp_path, name, mail(number))
    file(tmp_path, "notes.txt", "no mail")
    source = MailFiles(tmp_path, Normalizer())
    found = items(source)

    assert sorted(refs(found)) == [f"<{number}@example.com>" for number in range(5)]
    for number, item in enumerate(found, 1):
        assert refs(items(source, item.position)) == refs(found[number:])


def test_a_single_mail_is_a_valid_archive(tmp_path: Path) -> None:
    source = MailFiles(file(tmp_path, "letter.eml", mail(7)), Normalizer())

    (item,) = items(source)

    assert (item.where, refs([item])) == ("letter.eml", ["<7@example.com>"])
    assert items(source, item.position) == []
