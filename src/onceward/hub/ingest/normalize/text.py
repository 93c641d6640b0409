"""Canonical form of text, so that texts that look the same to readers compare equal."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata

# Unicode's stream-safe limit: no language puts more marks on one letter. Sorting a run of combining marks into
# canonical order takes quadratic time, so longer runs are left as they are.
_MARKS_MAX = 30
# All marks that canonical ordering moves are in this range.
_MARKS_RANGE = range(0x300, 0x1F000)
# These have combining class 0 in the tables, but each decomposes into two marks.
_MARKS_JOINED = "\u0f73\u0f75\u0f81"
# A fast first search for runs that may contain marks: neither letters nor digits, and above the Latin blocks. Dashes,
# box drawing and emoji, which are frequent in mail, are excluded too.
_SYMBOLS = re.compile(rf"[^\w\x00-\u02ff\u2000-\u20cf\u2100-\u2bff\U0001f000-\U0010ffff]{{{_MARKS_MAX + 1},}}+")


def clean(text: str) -> str:
    """Return the text in NFC, with each run of Unicode white space replaced by one space, and trimmed.

    This never raises, and applying it twice changes nothing. NUL and lone surrogates stay in the text; the validation
    of the whole payload decides whether it can be stored.
    """
    return " ".join(composed(text).split())


def composed(text: str) -> str:
    """Return the text in NFC, in linear time; more than thirty combining marks in a row are left as they are."""
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
    """Return the hash of the text's UTF-8 bytes. A lone surrogate is encoded as if UTF-8 allowed it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _too_many_marks() -> re.Pattern[str]:
    marks = "".join(filter(unicodedata.combining, map(chr, _MARKS_RANGE)))
    return re.compile(f"[{marks}{_MARKS_JOINED}]{{{_MARKS_MAX + 1},}}+")
