"""Ranges and file names of a download, decided from headers only."""

from __future__ import annotations

import time

import pytest

from onceward.hub.web.download import BytePart, Unsatisfiable, WholeContent, disposition, is_unchanged, wanted_part

TAG = '"sha256-abc"'


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, WholeContent()),
        ("bytes=0-9", BytePart(0, 10)),
        ("bytes=0-0", BytePart(0, 1)),
        ("bytes=90-", BytePart(90, 100)),
        ("bytes=90-1000", BytePart(90, 100)),
        ("bytes=-10", BytePart(90, 100)),
        ("bytes=-1000", BytePart(0, 100)),
        ("Bytes = 1 - 2", BytePart(1, 3)),
        ("bytes=100-", Unsatisfiable()),
        ("bytes=100-200", Unsatisfiable()),
        ("bytes=-0", Unsatisfiable()),
        ("bytes=5-4", WholeContent()),
        ("bytes=0-1,3-4", WholeContent()),
        ("bytes=-", WholeContent()),
        ("bytes=a-b", WholeContent()),
        ("lines=0-9", WholeContent()),
        ("bytes=0-" + "9" * 5000, WholeContent()),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_single_range_is_served_and_any_other_gets_everything(header: str | None, found: object) -> None:
    assert wanted_part(header, None, TAG, 100) == found


def test_a_range_of_another_version_gets_everything() -> None:
    assert wanted_part("bytes=0-9", TAG, TAG, 100) == BytePart(0, 10)
    assert wanted_part("bytes=0-9", '"other"', TAG, 100) == WholeContent()
    assert wanted_part("bytes=0-9", "Mon, 16 Nov 2026 12:00:00 GMT", TAG, 100) == WholeContent()


def test_empty_content_has_no_ranges() -> None:
    assert wanted_part("bytes=0-", None, TAG, 0) == Unsatisfiable()
    assert wanted_part("bytes=-5", None, TAG, 0) == Unsatisfiable()
    assert wanted_part(None, None, TAG, 0) == WholeContent()


@pytest.mark.parametrize(
    ("header", "unchanged"),
    [(None, False), (TAG, True), (f"W/{TAG}", True), (f'"x", {TAG}', True), ("*", True), ('"x"', False), ("", False)],
)
def test_a_client_with_current_content_gets_304(header: str | None, unchanged: bool) -> None:
    assert is_unchanged(header, TAG) is unchanged


@pytest.mark.parametrize(
    ("filename", "header"),
    [
        (None, "attachment"),
        ("a.txt", 'attachment; filename="a.txt"'),
        ('a"b\\c.txt', "attachment; filename=\"a_b_c.txt\"; filename*=UTF-8''a%22b%5Cc.txt"),
        ("ä €.txt", "attachment; filename=\"_ _.txt\"; filename*=UTF-8''%C3%A4%20%E2%82%AC.txt"),
        ("a\r\nX: y", "attachment; filename=\"a__X: y\"; filename*=UTF-8''a%0D%0AX%3A%20y"),
    ],
)
def test_a_file_name_cannot_break_out_of_its_header(filename: str | None, header: str) -> None:
    assert disposition("attachment", filename) == header


@pytest.mark.parametrize("blanks", [" " * 60_000, "\t \r" * 20_000], ids=["blanks", "mixed"])
@pytest.mark.parametrize("form", ["bytes={}x", "bytes{}=0-1x", "bytes=0{}-1x", "{}", "bytes=0-1{}"])
def test_a_range_header_of_sixty_kilobytes_is_ignored_at_once(form: str, blanks: str) -> None:
    began = time.process_time()
    assert wanted_part(form.format(blanks), None, TAG, 100) == WholeContent()

    assert time.process_time() - began < 0.5


def test_a_range_header_at_the_limit_is_read() -> None:
    header = "bytes=0-1".rjust(64)

    assert wanted_part(header, None, TAG, 100) == BytePart(0, 2)
    assert wanted_part(" " + header, None, TAG, 100) == WholeContent()
