"""Text detection, and the kind of text by its first lines (scripts, email, diffs, vCards, keys, Markdown)."""

# ruff: noqa: PLR2004 - the numbers are clear from their context.
from __future__ import annotations

import codecs
import re

from onceward.hub.media.sample import Sample

# (pattern at the beginning of the text, type). The first matching row decides.
_BEGINNINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), media_type)
    for pattern, media_type in (
        (r"\{\\rtf", "application/rtf"),
        (r"%!PS", "application/postscript"),
        (r"#\?RADIANCE\n", "image/vnd.radiance"),
        (r"BEGIN:VCARD\r?\n", "text/vcard"),
        (r"BEGIN:VCALENDAR\r?\n", "text/calendar"),
        (r"WEBVTT(?=[ \t\r\n]|$)", "text/vtt"),
        (r"1\r?\n\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}", "application/x-subrip"),
        (r"#EXTM3U(?=[ \t\r\n]|$)", "application/vnd.apple.mpegurl"),
        (r"-----BEGIN PGP PUBLIC KEY BLOCK-----", "application/pgp-keys"),
        (r"-----BEGIN PGP PRIVATE KEY BLOCK-----", "application/pgp-keys"),
        (r"-----BEGIN PGP SIGNATURE-----", "application/pgp-signature"),
        (r"-----BEGIN PGP MESSAGE-----", "application/pgp-encrypted"),
        (r"-----BEGIN [A-Z0-9 ]+-----\r?\n", "application/x-pem-file"),
        (r"<\?php\s", "text/x-php"),
        (r"d\d+:[a-z -]+\d+:\w+://", "application/x-bittorrent"),
        (r"age-encryption\.org/v1\n", "application/x-age-encryption"),
        (r"P[14]\s+(?:#[^\n]*\n\s*)?\d+\s+\d+\s", "image/x-portable-bitmap"),
        (r"P[25]\s+(?:#[^\n]*\n\s*)?\d+\s+\d+\s+\d+\s", "image/x-portable-graymap"),
        (r"P[36]\s+(?:#[^\n]*\n\s*)?\d+\s+\d+\s+\d+\s", "image/x-portable-pixmap"),
        (r"ply\r?\nformat (?:ascii|binary)", "model/ply"),
        (r"solid [^\n]*\r?\n\s*facet normal", "model/stl"),
        (r"diff --git a/", "text/x-diff"),
        (r"(?:Index: [^\n]+\n=+\n)?--- [^\n]+\r?\n\+\+\+ [^\n]+\r?\n@@ -", "text/x-diff"),
        (r"From \S{1,255}@\S{1,255} +(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ", "application/mbox"),
    )
)
# The same, after leading comments.
_STATEMENTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[\"']use strict[\"'](?=[;\s])"), "text/javascript"),
    (re.compile(r"[!;(+]{1,2}function[ \w]{0,40}\("), "text/javascript"),
    (re.compile(r"\\documentclass[\[{]"), "text/x-tex"),
)
_COMMENTS = (("/*", "*/"), ("//", "\n"), ("%", "\n"))
_OPENING_CHARACTERS = 4096
_INTERPRETERS: tuple[tuple[str, str], ...] = (
    ("python", "text/x-python"), ("pypy", "text/x-python"), ("node", "text/javascript"), ("deno", "text/javascript"),
    ("bun", "text/javascript"), ("perl", "text/x-perl"), ("ruby", "text/x-ruby"), ("php", "text/x-php"),
    ("lua", "text/x-lua"), ("awk", "text/x-awk"), ("gawk", "text/x-awk"), ("tclsh", "application/x-tcl"),
    ("rscript", "text/x-r"), ("csh", "application/x-csh"), ("tcsh", "application/x-csh"), ("sh", "text/x-shellscript"),
    ("bash", "text/x-shellscript"), ("dash", "text/x-shellscript"), ("zsh", "text/x-shellscript"),
    ("ksh", "text/x-shellscript"), ("ash", "text/x-shellscript"), ("fish", "text/x-shellscript"),
)  # fmt: skip
# Other types may begin in the same way, so these prove only that the file is text.
GUESSES = frozenset(media_type for _, media_type in _INTERPRETERS) | {
    "text/x-tex", "text/x-diff", "message/rfc822", "application/mbox", "application/x-subrip", "application/x-bittorrent",
}  # fmt: skip
# Longer shebangs do not work: operating systems read only 255 bytes of the line.
_SHEBANG = re.compile(r"#! *(?:\S{0,255}/env +(?:-\S{1,255} +){0,16})?(?:\S{0,255}/)?([A-Za-z]{1,64})[\d.]*(?=\s|$)")

# An email begins with header lines. Two of these headers, one of them from the first set, are enough evidence.
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]?[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*(?:\r?\n|$)")
_OF_MAIL = frozenset(
    {"return-path", "received", "message-id", "mime-version", "delivered-to", "dkim-signature", "from"}
)
_OF_LETTERS = _OF_MAIL | {"to", "cc", "subject", "date", "reply-to", "content-type", "references", "in-reply-to"}
_HEADERS_MAX = 60
_HEADER_CHARACTERS = 16 * 1024

# Features of Markdown. Two different ones are enough evidence.
_MARKDOWN: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^#{1,6} +\S",
        r"^(?:```|~~~)[\w+-]*\s*$",
        r"\[[^\[\]\n]{1,200}\]\((?:https?:|mailto:|[#./\w])[^)\n]*\)",
        r"^[^\s|<>{}#][^\n{}<>;]*\n(?:={3,}|-{3,})\s*$",
        r"(?<![\w*])\*\*[^\s*][^*\n]*\*\*(?![\w*])",
        r"^\|?(?: *+:?-{3,}+:? *+\|)++(?: *+:?-{3,}+:? *+)?\|?\s*$",
        r"^(?:[-*+]|\d+\.) +\S[^\n]*\n(?:[-*+]|\d+\.) +\S",
        r"^> +\S",
        r"^\[[^\[\]\n]{1,200}\]: +\S",
        r"(?<![`\w])`[^`\n]+`(?![`\w])",
    )
)
_MARKS_MIN = 2
# This many features mean Markdown, even with code outside fences.
_MARKS_OF_NO_CODE = 4
_MARKED_CHARACTERS = 8 * 1024
# Lines of source code, whose comments look like Markdown headings.
_CODE = re.compile(
    r"^(?:import \w|from \w+ import|def \w+\(|class \w+[(:]|#include|package \w|func \w|use \w+::|\w+ *= *[\w\"'\[{]"
    r"|\[[\w.-]+\]$|[\w-]+: )",
    re.MULTILINE,
)


def opening(text: str) -> str | None:
    """Detect the type by the first lines, or return None."""
    shebang = _SHEBANG.match(text)
    if shebang is not None:
        return dict(_INTERPRETERS).get(shebang[1].lower())
    beginning = text[:_OPENING_CHARACTERS].lstrip()
    statement = _after_comments(beginning)
    for rows, place in ((_BEGINNINGS, 0), (_STATEMENTS, statement)):
        for pattern, media_type in rows:
            if pattern.match(beginning, place):
                return media_type
    return "message/rfc822" if _is_mail(text[:_HEADER_CHARACTERS]) else None


def _after_comments(text: str) -> int:
    """Return where the first statement begins. A loop, because a regex for repeated comments could backtrack heavily."""
    place = 0
    while True:
        while text[place : place + 1].isspace():
            place += 1
        end = next((end for start, end in _COMMENTS if text.startswith(start, place)), None)
        if end is None or (found := text.find(end, place + 1)) < 0:
            return place
        place = found + len(end)


def _is_mail(text: str) -> bool:
    place, found = 0, set()
    for _ in range(_HEADERS_MAX):
        header = _HEADER.match(text, place)
        if header is None:
            break
        found.add(header[1].lower())
        place = header.end()
    rest = text[place : place + 2]
    ends_well = rest[:1] in {"", "\n", "\r"}
    return ends_well and len(found & _OF_LETTERS) > 1 and bool(found & _OF_MAIL)


def is_markdown(text: str) -> bool:
    beginning = text[:_MARKED_CHARACTERS].replace("\r\n", "\n")
    marks = [pattern for pattern in _MARKDOWN if pattern.search(beginning)]
    if len(marks) < _MARKS_MIN:
        return False
    outside = re.sub(r"^(```|~~~).*?^\1", "", beginning, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"\A---\n.*?\n---\n", "", outside, flags=re.DOTALL)
    return len(marks) >= _MARKS_OF_NO_CODE or _CODE.search(outside) is None


_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    # UTF-32 before UTF-16, because the longer mark begins with the shorter one.
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Control characters that do not occur in text: all except whitespace, backspace (overstrike), and escape (colours, and
# the shifts of ISO 2022).
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
_CONTROL_CHARACTER = re.compile(f"[{re.escape(_CONTROLS.decode())}\ufffe\uffff]")
# UTF-16 without a byte order mark is recognized by the zero bytes of its Latin letters, digits and blanks.
_PLAIN_SHARE = 0.3


def _decoded(data: bytes, encoding: str, *, is_whole: bool) -> str | None:
    """Decode the data, or return None if it is not text. A character at the end may be truncated."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL_CHARACTER.search(text) else text


def _wide(data: bytes, *, is_whole: bool) -> str | None:
    """Decode UTF-16 without a byte order mark, or return None."""
    half = len(data) // 2
    if half < 2 or (is_whole and len(data) % 2):  # One character is not enough evidence.
        return None
    for encoding, high in (("utf-16-le", data[1::2]), ("utf-16-be", data[0::2])):
        if high.count(0) >= _PLAIN_SHARE * half:
            text = _decoded(data, encoding, is_whole=is_whole)
            if text is not None:
                return text
    return None


def text_of(sample: Sample) -> str | None:
    """Return the text at the beginning of the file, or None if the file is not text.

    Text in a legacy encoding (Latin-1, Windows, Shift JIS, GBK, KOI8) is recognized because it has no control
    characters. It is decoded as Latin-1, which is enough to search for ASCII patterns.
    """
    head, is_whole = sample.head, sample.is_whole
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return _decoded(head[len(mark) :], encoding, is_whole=is_whole)
    if b"\x00" in head:
        return _wide(head, is_whole=is_whole)
    # ISO-2022-KR announces at the beginning that it uses shift-in and shift-out.
    controls = _CONTROLS.translate(None, b"\x0e\x0f") if head.startswith(b"\x1b$)C") else _CONTROLS
    for part in (head, b"" if is_whole else sample.tail()):
        # The end is checked, too: binary data may have a text header.
        if len(part) != len(part.translate(None, controls)):
            return None
    text = _decoded(head, "utf-8", is_whole=is_whole)
    return head.decode("latin-1") if text is None else text
