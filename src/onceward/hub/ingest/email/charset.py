"""Charsets of mail: decodes bytes to text that can be stored, even if the charset label is wrong. Never raises."""

from __future__ import annotations

import re

# Charset labels, reduced to letters and digits, by the codec for the bytes that are really sent under them: Windows
# sends cp1252 as ISO 8859-1, and programs in China send GBK as GB 2312. We use our own table, because Python's aliases
# also include codecs that are not charsets, and some that take quadratic time.
_LABELS = {
    "utf-8": "utf8 utf8mb4 unicode11utf8 xunicode20utf8",
    "utf-7": "utf7 unicode11utf7",
    "utf-16": "utf16 unicode ucs2",
    "utf-16-le": "utf16le",
    "utf-16-be": "utf16be",
    "utf-32": "utf32",
    "cp1252": "windows1252 cp1252 xcp1252 iso88591 latin1 l1 cp819 ibm819 isolatin1",
    "cp1254": "windows1254 cp1254 iso88599 latin5",
    "cp874": "windows874 cp874 iso885911 tis620",
    **{f"cp{page}": f"windows{page} cp{page} xcp{page}" for page in (1250, 1251, 1253, 1255, 1256, 1257, 1258)},
    **{f"cp{page}": f"cp{page} ibm{page}" for page in (437, 850, 852, 855, 858, 862, 866)},
    **{f"iso8859-{number}": f"iso8859{number}" for number in (3, 4, 5, 6, 7, 10, 13, 14, 16)},
    "iso8859-2": "iso88592 latin2 isolatin2",
    "iso8859-8": "iso88598 iso88598i iso88598e visual",
    "iso8859-15": "iso885915 latin9 latin0",
    "koi8-r": "koi8r koi8",
    "koi8-u": "koi8u koi8ru",
    "mac-roman": "macintosh mac macroman xmacroman",
    "mac-cyrillic": "maccyrillic xmaccyrillic",
    "gb18030": "gb18030 gb2312 gbk xgbk cp936 ms936 euccn gb231280",
    "hz": "hz hzgb2312",
    "big5hkscs": "big5 cnbig5 xxbig5 big5hkscs",
    "cp950": "cp950 ms950",
    "cp932": "shiftjis sjis xsjis mskanji windows31j cp932 ms932",
    "euc-jp": "eucjp xeucjp ujis",
    "iso2022-jp-2": "iso2022jp iso2022jp1 iso2022jp2 iso2022jpms cp50220 cp50221",
    "cp949": "euckr ksc56011987 ksc5601 ksc56011989 korean cp949 uhc windows949",
    "iso2022-kr": "iso2022kr",
    "johab": "johab",
}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}

_NOT_LABEL = re.compile(r"[^a-z0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


def decoded(data: bytes, label: str | None) -> str:
    """Decode bytes by their charset label, else as UTF-8, else by the label with U+FFFD for invalid bytes.

    A label that is missing, unknown or ASCII means UTF-8, else cp1252.
    """
    codec = codec_of(label)
    for attempt in (codec, "utf-8"):
        if attempt is not None:
            try:
                return storable(data.decode(attempt))
            except UnicodeError:
                continue
    return storable(data.decode(codec or "cp1252", "replace"))


def codec_of(label: str | None) -> str | None:
    """Return the codec for a charset label, without the language that may follow a star (RFC 2231)."""
    return _CODECS.get(_NOT_LABEL.sub("", label.partition("*")[0].lower())) if label else None


def storable(text: str) -> str:
    """Remove NUL, which PostgreSQL cannot store, and replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "")
    try:
        # Faster than searching for surrogates.
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text
