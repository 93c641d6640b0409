"""The text of an entry as it is compared: one form for what readers take for the same."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata

# Unicode's stream-safe limit: no language puts more marks on one letter. Putting a longer run into canonical order takes
# time that grows with its square, so such a run is left as it came.
_MARKS_MAX = 30
# Every mark that moves in canonical order lies here. Three letters of Tibetan are no marks and fall apart into two.
_MARKS_RANGE = range(0x300, 0x1F000)
_MARKS_IN_DISGUISE = "\u0f73\u0f75\u0f81"


def clean(text: str) -> str:
    """NFC, with every run of white space (as Unicode has it) made one blank, and none at the ends.

    Never raises, and doing it twice changes nothing. NUL and lone surrogates stay where they are: whether a text that
    has them can be stored is for the checks of the whole payload to say.
    """
    return " ".join(composed(text).split())


def composed(text: str) -> str:
    """NFC in linear time; a run of more than thirty marks on one letter is left as it is."""
    if text.isascii():
        return text
    runs = _long_runs()
    if runs.search(text) is None:
        return unicodedata.normalize("NFC", text)
    # The captured runs are the parts at odd places.
    return "".join(
        part if place % 2 else unicodedata.normalize("NFC", part) for place, part in enumerate(runs.split(text))
    )


def sha256_hex(text: str) -> str:
    """The hash of the text's UTF-8 bytes. A lone surrogate, which has none, is hashed as if it had."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@functools.cache
def _long_runs() -> re.Pattern[str]:
    marks = "".join(filter(unicodedata.combining, map(chr, _MARKS_RANGE)))
    return re.compile(f"([{marks}{_MARKS_IN_DISGUISE}]{{{_MARKS_MAX + 1},}})")
