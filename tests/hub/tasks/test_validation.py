"""Valid fields of an attachment: pure, without a database."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from onceward.errors import InvalidInput, TooLarge
from onceward.hub.tasks import validation
from onceward.hub.tasks.validation import normal_labels

NOW = datetime.datetime(2026, 11, 16, 12, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize("kind", ["spec", " Diagram ", "ARTIFACT", "diagnostic", "archive", "other\n"])
def test_a_kind_is_trimmed_and_lower_cased(kind: str) -> None:
    assert validation.normal_kind(kind) == kind.strip().lower()


@pytest.mark.parametrize("kind", ["", "specs", "file", "sp ec"])
def test_an_unknown_kind_is_refused_with_the_valid_ones(kind: str) -> None:
    with pytest.raises(InvalidInput, match="spec, diagram, artifact, diagnostic, archive, other"):
        validation.normal_kind(kind)


def test_labels_are_normalized() -> None:
    assert normal_labels([" Urgent ", "urgent", "a\u0308", "ä", "Zoë", "x" * 64]) == ("urgent", "x" * 64, "zoë", "ä")
    assert normal_labels([]) == ()


@pytest.mark.parametrize("label", ["", " ", "a b", "a\tb", "a\u00a0b", "a\nb", "x" * 65, "a\u200bb", "\ud800", "a\0"])
def test_an_invalid_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidInput, match="labels"):
        normal_labels([label])


def test_the_number_of_labels_is_limited() -> None:
    assert len(normal_labels(f"l{n}" for n in range(100))) == 100
    with pytest.raises(InvalidInput, match="100"):
        normal_labels(f"l{n}" for n in range(101))


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("2026-12-31T12:00:00Z", "2026-12-31T12:00:00.000000Z"),
        ("2026-12-31t12:00:00.5z", "2026-12-31T12:00:00.500000Z"),
        ("2026-12-31T12:00:00+02:00", "2026-12-31T10:00:00.000000Z"),
        ("2026-12-31 12:00:00-00:30", "2026-12-31T12:30:00.000000Z"),
        ("2026-12-31", "2026-12-31T23:59:59.999999Z"),
        ("2026-11-16", "2026-11-16T23:59:59.999999Z"),
        (" 2028-02-29 ", "2028-02-29T23:59:59.999999Z"),
    ],
)
def test_an_expiry_is_stored_in_utc_with_a_fixed_width(text: str, stored: str) -> None:
    assert validation.expiry(text, NOW) == stored


@pytest.mark.parametrize(
    "text",
    [
        "tomorrow", "2026-12-31T12:00:00", "2026-12-31T12:00Z", "2026-13-01", "2027-02-29", "2026-12-31T25:00:00Z",
        "2026-11-16T12:00:00Z", "2026-11-15", "1999-01-01", "20261231", "2026-W50-1", "9999-12-31T23:59:59-23:59",
        "\uff12\uff10\uff12\uff16-12-31",
    ],
)  # fmt: skip
def test_an_expiry_that_is_past_or_invalid_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expires_at"):
        validation.expiry(text, NOW)


def test_without_an_expiry_it_is_none() -> None:
    assert validation.expiry(None, NOW) is None
    assert validation.expiry("", NOW) is None


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ada\\report.pdf", "report.pdf"),
        ("a\r\nb.txt", "ab.txt"),
        ("Übersicht 2026.pdf", "Übersicht 2026.pdf"),
        ("..", None),
        ("/", None),
        ("", None),
        (None, None),
    ],
)
def test_only_the_last_part_of_a_file_name_is_kept(sent: str | None, kept: str | None) -> None:
    assert validation.normal_filename(sent) == kept


def test_a_long_file_name_or_title_is_refused() -> None:
    with pytest.raises(InvalidInput, match="filename"):
        validation.normal_filename("ä" * 128)
    with pytest.raises(InvalidInput, match="title"):
        validation.normal_title("x" * 513)
    assert validation.normal_title("  ") is None


def test_meta_is_an_object_of_bounded_size() -> None:
    assert validation.meta_text({}) is None
    assert validation.meta_text({"a": "x" * (16 * 1024 - 8)}) is not None
    with pytest.raises(TooLarge):
        validation.meta_text({"a": "x" * 16 * 1024})
    with pytest.raises(InvalidInput):
        validation.meta_text({"a": "\0"})
    with pytest.raises(InvalidInput):
        validation.meta_text({"a": "\ud800"})
    with pytest.raises(InvalidInput):
        validation.meta_text([])  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["docs/spec.md", "a", "a/b c/d.txt", "..a/b", "a/.hidden", "./a", "ticket:42"])
def test_a_repository_path_is_relative(path: str) -> None:
    assert validation.repo_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        *("", " ", "/etc/passwd", "a/../b", "..", "a\\b", "C:a", "c:/a", "a\nb", "a\0", "x" * 1025),
        *("file:///x", "git+ssh://a/b", "HTTPS://a"),
    ],
)
def test_a_path_that_leaves_the_repository_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput, match="repo_path"):
        validation.repo_path(path)


@pytest.mark.parametrize(
    "url", ["ftp://example.com", "javascript:alert(1)", "//example.com", "https://", "https://a b", "x" * 2049]
)
def test_an_external_url_is_http_or_https(url: str) -> None:
    with pytest.raises(InvalidInput, match="external_url"):
        validation.web_url(url)
    assert validation.web_url("HTTPS://Example.com:8443/a?b#c") == "HTTPS://Example.com:8443/a?b#c"


@pytest.mark.parametrize("levels", [65, 5000])
def test_meta_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    meta: Any = {}
    for _ in range(levels - 1):
        meta = {"a": meta}

    with pytest.raises(InvalidInput, match=r"nested|cannot be written as JSON"):
        validation.meta_text(meta)


def test_meta_with_64_levels_is_accepted() -> None:
    meta: Any = {}
    for _ in range(63):
        meta = {"a": meta}

    assert validation.meta_text(meta) is not None
