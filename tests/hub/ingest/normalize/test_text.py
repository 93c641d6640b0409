"""One normal form for text that looks the same to readers."""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata

import pytest

from onceward.hub.ingest.normalize import text
from onceward.hub.ingest.normalize.text import clean, composed, sha256_hex

CLEANED = {
    "nothing": ("", ""),
    "blanks only": (" \t\r\n", ""),
    "blanks around and inside": ("  a \t\r\n b  ", "a b"),
    "blanks of Unicode": ("a\u00a0\u2003\u3000\u2028\u0085b", "a b"),
    "a blank without width is none": ("a\u200bb", "a\u200bb"),
    "two forms of one letter": ("e\u0301", "\u00e9"),
    "marks in another order": ("a\u0323\u0302", "\u1ead"),
    "a letter that only looks alike stays": ("\ufb01", "\ufb01"),
    "letters keep their case": ("ABC", "ABC"),
    "NUL stays": ("a\0b", "a\0b"),
    "half a character stays": ("a\ud800 \udfffb", "a\ud800 \udfffb"),
}


@pytest.mark.parametrize(("came", "becomes"), CLEANED.values(), ids=CLEANED)
def test_text_is_cleaned_into_one_form(came: str, becomes: str) -> None:
    assert clean(came) == becomes
    assert clean(becomes) == becomes


def test_every_single_character_is_composed_as_in_unicode() -> None:
    alone = "a".join(map(chr, range(0x30000)))

    assert composed(alone) == unicodedata.normalize("NFC", alone)


def test_thirty_combining_marks_are_put_in_canonical_order() -> None:
    marked = "a" + "\u0301\u0316" * 15

    assert composed(marked) == unicodedata.normalize("NFC", marked) != marked


@pytest.mark.parametrize("mark", ["\u0301\u0316", "\u0f73", "\u0f75", "\u0f81"], ids=ascii)
def test_a_letter_with_a_million_marks_takes_linear_time(mark: str) -> None:
    """An insertion sort of the marks would take hours."""
    marked = "e\u0301 " + mark * 1_000_000 + " e\u0301"

    assert clean(marked) == "\u00e9 " + mark * 1_000_000 + " \u00e9"


def test_box_drawings_and_emoji_are_not_marks_and_text_around_them_is_composed() -> None:
    framed = "\u2500" * 100 + "e\u0301" + "\U0001f600" * 100 + "\u20d0" * 10

    assert composed(framed) == unicodedata.normalize("NFC", framed)


def test_all_characters_with_a_combining_class_are_known_as_marks() -> None:
    one = re.compile(text._too_many_marks().pattern.partition("]")[0] + "]")
    symbol = re.compile(text._SYMBOLS.pattern.partition("]")[0] + "]")
    moved = [
        letter
        for letter in map(chr, range(sys.maxunicode + 1))
        if unicodedata.combining(unicodedata.normalize("NFD", letter)[0])
    ]

    assert all(map(one.fullmatch, moved))
    assert all(map(symbol.fullmatch, moved))


@pytest.mark.parametrize("hashed", ["", "abc", "\u00e9", "a\0b"], ids=ascii)
def test_a_hash_is_computed_from_the_utf_8_bytes(hashed: str) -> None:
    assert sha256_hex(hashed) == hashlib.sha256(hashed.encode()).hexdigest()


def test_a_lone_surrogate_has_its_own_hash() -> None:
    assert len({sha256_hex("a\ud800"), sha256_hex("a\ud801"), sha256_hex("a"), sha256_hex("a?")}) == 4
