"""Encodings of mail: encoded words in headers (RFC 2047) and transfer encodings of bodies. Nothing here raises."""

from __future__ import annotations

import binascii
import re

from onceward.hub.ingest.email.charset import decoded

_WORD = re.compile(r"=\?([^?\s]*)\?([bBqQ])\?([^?]*)\?=")
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]+")
_LETTERS_PER_GROUP, _BYTES_PER_GROUP = 4, 3


def words_decoded(text: str) -> str:
    """Decode the encoded words in a text, even where they are not allowed: in quotes, or without spaces around them.

    White space between two encoded words is removed. Adjacent words with the same charset are decoded together, since
    some senders split a character between two words.
    """
    if "=?" not in text:
        return text
    pieces: list[str] = []
    run: list[bytes] = []
    label, at = "", 0
    for word in _WORD.finditer(text):
        between = text[at : word.start()]
        is_glued = bool(run) and not between.strip()
        if run and not (is_glued and word[1].lower() == label):
            pieces.append(decoded(b"".join(run), label))
            run = []
        if not is_glued:
            pieces.append(between)
        label, at = word[1].lower(), word.end()
        run.append(_word_bytes(word[2], word[3].encode("utf-8", "replace")))
    if run:
        pieces.append(decoded(b"".join(run), label))
    return "".join([*pieces, text[at:]])


def _word_bytes(encoding: str, data: bytes) -> bytes:
    return binascii.a2b_qp(data, header=True) if encoding in "qQ" else base64_bytes(data)


def transfer_decoded(data: bytes, encoding: str) -> bytes:
    """Decode the bytes of a body; bytes in an unknown encoding are returned unchanged."""
    if encoding == "base64":
        return base64_bytes(data)
    return binascii.a2b_qp(data) if encoding == "quoted-printable" else data


def transfer_size(data: bytes, encoding: str) -> int:
    """Return the size of the decoded body, without decoding base64."""
    if encoding != "base64":
        return len(transfer_decoded(data, encoding))
    return len(data.translate(None, b"\n\r =")) * _BYTES_PER_GROUP // _LETTERS_PER_GROUP


def base64_bytes(data: bytes) -> bytes:
    """Decode as much of a base64 text as possible, ignoring invalid characters and a truncated end."""
    try:
        return binascii.a2b_base64(data)
    except binascii.Error:
        letters = _NOT_BASE64.sub(b"", data)
    if len(letters) % _LETTERS_PER_GROUP == 1:
        letters = letters[:-1]
    return binascii.a2b_base64(letters + b"=" * (-len(letters) % _LETTERS_PER_GROUP))
