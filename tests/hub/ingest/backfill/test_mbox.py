"""mbox: where one mail ends and the next begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.ingest.backfill.message_archives import ENVELOPE, file, items, mail, mbox, refs

from onceward.errors import InvalidInput
from onceward.hub.ingest.backfill.mbox import Mbox, envelope_time, is_mbox
from onceward.hub.ingest.backfill.normalizer import Normalizer


def opened(folder: Path, content: str | bytes) -> Mbox:
    return Mbox(file(folder, "mail.mbox", content), Normalizer())


def text_of(folder: Path, content: str | bytes) -> list[object]:
    payloads = [item.payload() for item in items(opened(folder, content))]
    return [payload and payload["capture_text"] for payload in payloads]


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_each_mail_is_found_in_order(tmp_path: Path, ends: str) -> None:
    content = mbox(mail(1), mail(2), mail(3)).replace(b"\n", ends.encode())

    assert refs(items(opened(tmp_path, content))) == ["<1@example.com>", "<2@example.com>", "<3@example.com>"]


def test_a_run_resumes_after_any_mail(tmp_path: Path) -> None:
    source = opened(tmp_path, mbox(mail(1), mail(2), mail(3)))
    all_of_them = items(source)

    for number, item in enumerate(all_of_them, 1):
        assert refs(items(source, item.position)) == refs(all_of_them[number:])
    assert all_of_them[-1].position == source.total


def test_the_reported_position_is_the_start_of_the_mail(tmp_path: Path) -> None:
    content = mbox(mail(1), mail(2))
    for item in items(opened(tmp_path, content)):
        offset = int(item.where.removeprefix("offset "))
        assert content[offset:].startswith(ENVELOPE.encode())


def test_a_file_that_grows_is_continued_where_it_ended(tmp_path: Path) -> None:
    source = opened(tmp_path, mbox(mail(1)))
    (first,) = items(source)
    mark = source.mark()

    grown = opened(tmp_path, mbox(mail(1), mail(2)))

    assert grown.mark() == mark
    assert refs(items(grown, first.position)) == ["<2@example.com>"]


@pytest.mark.parametrize(
    "line",
    ["From the beginning", "From here to 2026", "From ada@example.com yesterday", "from ada Mon Nov 16 03:26:00 2026"],
)
def test_a_body_may_have_lines_that_only_look_like_separators(tmp_path: Path, line: str) -> None:
    assert text_of(tmp_path, mbox(mail(1, body=f"One.\n\n{line}\nTwo."))) == [f"One.\n\n{line}\nTwo.\n"]


def test_a_separator_counts_only_after_an_empty_line(tmp_path: Path) -> None:
    body = f"One.\n{ENVELOPE}Two."

    assert text_of(tmp_path, mbox(mail(1, body=body))) == [f"{body}\n"]


def test_quoted_separators_are_unquoted_once(tmp_path: Path) -> None:
    body = ">From a\n>>From b\n> From c\nSee >From d"

    assert text_of(tmp_path, mbox(mail(1, body=body))) == ["From a\n>From b\n> From c\nSee >From d\n"]


@pytest.mark.parametrize(
    ("line", "time"),
    [
        (b"From ada@x Mon Nov 16 03:26:00 2026\n", "2026-11-16T03:26:00.000000Z"),
        (b"From ada@x Mon Nov  6 03:26:00 2026 +0100\r\n", "2026-11-06T02:26:00.000000Z"),
        (b"From ada@x Mon Nov 16 03:26 2026\n", "2026-11-16T03:26:00.000000Z"),
        (b"From Mon Nov 16 03:26:00 UTC 2026\n", "2026-11-16T03:26:00.000000Z"),
        (b"From ada@x Nov 16 03:26:00 2026\n", "2026-11-16T03:26:00.000000Z"),
        (b"From ada@x Mon Nov 46 03:26:00 2026\n", None),
        (b"From ada@x\n", None),
    ],
)
def test_a_separator_has_the_arrival_time(line: bytes, time: str | None) -> None:
    assert envelope_time(line) == time


def test_a_mail_without_a_date_gets_the_date_of_its_separator(tmp_path: Path) -> None:
    (item,) = items(opened(tmp_path, mbox(mail(1))))
    payload = item.payload()

    assert payload is not None
    assert isinstance(payload["metadata"], dict)
    assert payload["metadata"]["source_time"] == "2026-11-16T03:26:00.000000Z"


def test_a_file_that_does_not_begin_with_a_separator_is_not_an_mbox(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not an mbox file"):
        items(opened(tmp_path, mail(1)))

    assert not is_mbox(mail(1).encode())
    assert is_mbox(b"\n" + mbox(mail(1)))
    assert items(opened(tmp_path, "")) == []
