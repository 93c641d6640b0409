"""The text of an entry as it is compared: one form for what readers take for the same."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata

# Unicode's stream-safe limit: no language puts more marks on one letter. The time to put a run of marks into canonical
# order grows with the square of its length, so a longer one is left as it came.
_MARKS_MAX = 30
# All marks that canonical order moves are in this range.
_MARKS_RANGE = range(0x300, 0x1F000)
# These stand alone in the tables, and fall apart into two marks each.
_MARKS_JOINED = "\u0f73\u0f75\u0f81"
# Marks are among these, which are quick to find: neither letters nor digits, and beyond the Latin blocks. Lines of
# dashes, frames and pictures, of which letters are full, are left out too.
_SYMBOLS = re.compile(rf"[^\w\x00-\u02ff\u2000-\u20cf\u2100-\u2bff\U0001f000-\U0010ffff]{{{_MARKS_MAX + 1},}}+")


def clean(text: str) -> str:
    """NFC, with every run of white space (as Unicode has it) made one blank, and none at the ends.

    Never raises, and doing it twice changes nothing. NUL and lone surrogates stay where they are: whether a text that
    has them can be stored is for the checks of the whole payload to say.
    """
    return " ".join(composed(text).split())


def composed(text: str) -> str:
    """NFC in linear time; more than thirty marks in a row are left as they are."""
    if text.isascii():
        return text
    parts: list[str] = []
    done = 0
    for symbols in _SYMBOLS.finditer(text):
        for marks in _too_many_marks().finditer(text, symbols.start(), symbols.end()):
            parts += (unicodedata.normalize("NFC", text[done : marks.start()]), marks[0])
            done = marks.end()
    parts.append(unicodedata.normalize("NFC", text[done:]))
    return "".join(parts)


def sha256_hex(text: str) -> str:
    """The hash of the text's UTF-8 bytes. A lone surrogate, which has none, is hashed as if it had."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _too_many_marks() -> re.Pattern[str]:
    marks = "".join(filter(unicodedata.combining, map(chr, _MARKS_RANGE)))
    return re.compile(f"[{marks}{_MARKS_JOINED}]{{{_MARKS_MAX + 1},}}+")
