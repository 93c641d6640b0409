"""Whether a file is text, and the characters of its beginning."""

# ruff: noqa: PLR2004 - the numbers explain themselves where they stand.
from __future__ import annotations

import codecs
import re

from onceward.blobs.media.sample import Sample

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # The longer mark first: it begins with the shorter one.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# What no text has: control characters other than the blank ones, backspace (overstrike), and escape (colours, and the
# shifts of ISO 2022).
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
_CONTROL_CHARACTER = re.compile(f"[{re.escape(_CONTROLS.decode())}\ufffe\uffff]")
# Text of two bytes for each character that does not say so shows in the zeros of its Latin letters, digits and blanks.
_PLAIN_SHARE = 0.3


def _decoded(data: bytes, encoding: str, *, is_whole: bool) -> str | None:
    """The characters, or None if they are none. The last one may be cut where the beginning ends."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL_CHARACTER.search(text) else text


def _wide(data: bytes, *, is_whole: bool) -> str | None:
    """UTF-16 without its mark."""
    half = len(data) // 2
    if half < 2 or (is_whole and len(data) % 2):  # One character is not enough to tell.
        return None
    for encoding, high in (("utf-16-le", data[1::2]), ("utf-16-be", data[0::2])):
        if high.count(0) >= _PLAIN_SHARE * half:
            text = _decoded(data, encoding, is_whole=is_whole)
            if text is not None:
                return text
    return None


def text_of(sample: Sample) -> str | None:
    """The characters that the file begins with, or None where it is not text.

    Text of an older encoding (Latin-1, Windows, Shift JIS, GBK, KOI8) is known by having no control characters; its
    letters come back as whatever Latin-1 makes of them, which is enough to look for ASCII marks in it.
    """
    head, is_whole = sample.head, sample.is_whole
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return _decoded(head[len(mark) :], encoding, is_whole=is_whole)
    if b"\x00" in head:
        return _wide(head, is_whole=is_whole)
    # ISO 2022 for Korean says at once that it will shift in and out.
    controls = _CONTROLS.translate(None, b"\x0e\x0f") if head.startswith(b"\x1b$)C") else _CONTROLS
    for part in (head, b"" if is_whole else sample.tail()):
        # Also of the end: a header of text may stand in front of data.
        if len(part) != len(part.translate(None, controls)):
            return None
    text = _decoded(head, "utf-8", is_whole=is_whole)
    return head.decode("latin-1") if text is None else text
