"""Text that says what it is in its first lines: scripts, mail, diffs, cards, keys. And Markdown, which does not."""

from __future__ import annotations

import re

# (a pattern that the text must begin with, type). The first row that matches answers.
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
# The same, behind comments.
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
# Others may begin alike, so these prove no more than that it is text.
GUESSES = frozenset(media_type for _, media_type in _INTERPRETERS) | {
    "text/x-tex", "text/x-diff", "message/rfc822", "application/mbox", "application/x-subrip", "application/x-bittorrent",
}  # fmt: skip
# Longer ones run nowhere: systems read 255 bytes of the line.
_SHEBANG = re.compile(r"#! *(?:\S{0,255}/env +(?:-\S{1,255} +){0,16})?(?:\S{0,255}/)?([A-Za-z]{1,64})[\d.]*(?=\s|$)")

# Mail begins with header lines. Two of these, one of them from the first set, are not a coincidence.
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]?[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*(?:\r?\n|$)")
_OF_MAIL = frozenset(
    {"return-path", "received", "message-id", "mime-version", "delivered-to", "dkim-signature", "from"}
)
_OF_LETTERS = _OF_MAIL | {"to", "cc", "subject", "date", "reply-to", "content-type", "references", "in-reply-to"}
_HEADERS_MAX = 60
_HEADER_CHARACTERS = 16 * 1024

# Each is a mark of Markdown on its own; two different ones are believed.
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
# So many that it is Markdown even if it shows code outside of fences.
_MARKS_OF_NO_CODE = 4
_MARKED_CHARACTERS = 8 * 1024
# What code has and prose has not; a comment in it looks like a heading.
_CODE = re.compile(
    r"^(?:import \w|from \w+ import|def \w+\(|class \w+[(:]|#include|package \w|func \w|use \w+::|\w+ *= *[\w\"'\[{]"
    r"|\[[\w.-]+\]$|[\w-]+: )",
    re.MULTILINE,
)


def opening(text: str) -> str | None:
    """What the first lines say."""
    shebang = _SHEBANG.match(text)
    if shebang is not None:
        return dict(_INTERPRETERS).get(shebang[1].lower())
    beginning = text[:_OPENING_CHARACTERS].lstrip()
    statement = _behind_comments(beginning)
    for rows, place in ((_BEGINNINGS, 0), (_STATEMENTS, statement)):
        for pattern, media_type in rows:
            if pattern.match(beginning, place):
                return media_type
    return "message/rfc822" if _is_mail(text[:_HEADER_CHARACTERS]) else None


def _behind_comments(text: str) -> int:
    """Where the first statement begins. By steps: a pattern for many comments may go astray in its possibilities."""
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
