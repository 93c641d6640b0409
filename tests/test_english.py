"""Everything that people read is plain technical English: none of the patterns that need a second reading is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.english import FIRST_LINE, FIRST_LINE_REASON, PATTERNS, Found, files, search

# A file, a part of the sentence, and why the sentence is right. Keep it short: rewrite the sentence first.
EXCEPTIONS: dict[tuple[str, str], str] = {}

BAD = [
    "expires_at is no day or time",
    "addresses that there are not",
    "begin anew",
    "so many of them",
    "for so long",
    "Who waits is served.",
    "What somebody else deletes is skipped.",
    "Whoever comes first sends it.",
    "Nobody waits for it.",
    "It is over. What is left is his.",
    "the sentence of the seed",
    "it waits for ever",
    "it hangs on the clock",
]
GOOD = [
    "metadata must not contain NaN or infinity",
    "expires_at is not a valid date or time",
    "at most 1000 items per batch, got 1234",
    "Optimistic retries after a write conflict, before taking the table lock.",
    "SKIP LOCKED: skip rows that another transaction is changing.",
    "The client is no longer connected.",
    "What happens after a crash?",
    "gave up after 50 attempts without a result",
]


@pytest.fixture(scope="module")
def findings() -> list[Found]:
    """Reading everything takes seconds."""
    return list(search(files()))


def test_nothing_needs_a_second_reading(findings: list[Found]) -> None:
    found = [
        str(one) for one in findings if not any(one.path == path and text in one.text for path, text in EXCEPTIONS)
    ]

    assert found == []


def test_no_exception_is_left_over(findings: list[Found]) -> None:
    assert [
        (path, text) for path, text in EXCEPTIONS if not any(one.path == path and text in one.text for one in findings)
    ] == []
    assert len(EXCEPTIONS) <= 20


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_sentence_is_found(sentence: str) -> None:
    assert any(pattern.search(sentence) for pattern in PATTERNS.values())


@pytest.mark.parametrize("sentence", GOOD)
def test_a_good_sentence_is_not_found(sentence: str) -> None:
    assert not any(pattern.search(sentence) for pattern in PATTERNS.values())


@pytest.mark.parametrize("line", ["Whether it lives.", "How long it lasts.", "As `run`, for threads.", "Who has it."])
def test_a_first_line_is_an_imperative_or_a_noun_phrase(line: str) -> None:
    assert FIRST_LINE.match(line)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("src/onceward/a.py", '"""Who waits."""\n'),
        ("src/onceward/b.py", "x = 1  # it waits for ever\n"),
        ("src/onceward/c.py", "# A comment in two\n# lines begins anew.\n"),
        ("src/onceward/d.py", "raise ValueError(f'{x} is no number')\n"),
        ("src/onceward/e.sql", "SELECT 1; -- begin anew\n"),
        ("tests/test_a.py", "def test_who_waits_is_served(): ...\n"),
        ("tests/test_b.py", "def test_a_claim_is_begun_anew(): ...\n"),
        ("tests/test_c.py", "def test_a_failure_reaches_everybody(): ...\n"),
        ("tests/helper.py", '"""Whoever asks."""\n'),
        ("docs/f.md", "# Title\n\nA paragraph that waits for\never and ever: it waits for ever.\n"),
        ("docs/g.md", "| a | b is no c |\n"),
    ],
)
def test_it_reads_docstrings_comments_messages_and_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(content, "utf-8")
    monkeypatch.setattr("tests.english.ROOT", tmp_path)

    assert {one.path for one in search(files())} == {name}


def test_it_does_not_read_the_data_of_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tests" / "test_a.py"
    path.parent.mkdir()
    path.write_text("def test_a_seed_is_printed():\n    assert read('begin anew')\n", "utf-8")
    monkeypatch.setattr("tests.english.ROOT", tmp_path)

    assert list(search(files())) == []


def test_it_does_not_read_blocks_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("Text.\n\n```\nbegin anew\n```\n\nMore text.\n", "utf-8")
    monkeypatch.setattr("tests.english.ROOT", tmp_path)

    assert list(search(files())) == []


def test_the_first_line_of_a_docstring_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "src" / "a.py"
    path.parent.mkdir()
    path.write_text('"""A module."""\n\n\ndef f():\n    """Whether it is."""\n', "utf-8")
    monkeypatch.setattr("tests.english.ROOT", tmp_path)

    assert [(one.line, one.reason) for one in search(files())] == [(5, FIRST_LINE_REASON)]
