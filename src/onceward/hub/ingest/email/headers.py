"""Headers of a mail or of a part of it, by RFC 5322 and as real programs send them. Nothing here raises.

Everything takes linear time, even for malicious input.
"""

from __future__ import annotations

import itertools
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from onceward.hub.ingest.email.charset import decoded
from onceward.hub.ingest.email.encodings import words_decoded

# Names are in lower case. Values are unchanged, one for each occurrence of the name.
Headers: TypeAlias = Mapping[str, Sequence[str]]

# Real mail has about a hundred fields; the limit stops mail that is made to waste time.
FIELDS_MAX = 2000
# The rest of a longer list of addresses or ids is ignored.
LIST_LENGTH_MAX = 64 * 1024
# A value has a few parameters; a file name may be split into some more.
PARAMETERS_MAX = 100

# The possessive `*+` prevents backtracking.
_FIELD = re.compile(r"([!-9;-~]+)[ \t]*:([^\n]*(?:\n[ \t][^\n]*)*+)(?:\n|\Z)")
# The separator line before the headers in an mbox file, also if another program has quoted it.
_ENVELOPE = re.compile(r">*From [^\n]*(?:\n|\Z)")
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
# An unclosed quote ends with the value.
_PARAMETER = re.compile(r';\s*([^\s=;]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)(?:"|\\?\Z)|([^;]*))', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ADDRESS_PIECE = re.compile(r'\\.|["(),;:<>\\]|[^"(),;:<>\\]+', re.DOTALL)
_CLOSING = {'"': '"', "(": ")", "<": ">"}
_BETWEEN = frozenset(",;:")
_IDENTIFIER = re.compile(r"<[^<>]*>")


def split_head(raw: bytes) -> tuple[Headers, bytes]:
    """Return the header fields and the body, which starts after the first empty line or at the first other line.

    Lines end in LF; see `one_line_end`. Headers that are not UTF-8 are decoded with the charset that they name for the
    body.
    """
    head, _, body = raw.partition(b"\n\n")
    shown = head.replace(b"\0", b"") if b"\0" in head else head
    label, is_utf8 = None, True
    try:
        text = shown.decode("utf-8")
    except UnicodeDecodeError:
        text, is_utf8 = shown.decode("utf-8", "surrogateescape"), False
        named = _CHARSET.search(text)
        label = named and named[1]
    fields: dict[str, list[str]] = {}
    at, count = 0, 0
    while at < len(text) and count < FIELDS_MAX:
        line = _FIELD.match(text, at)
        if line is not None:
            name, value = line.groups()
            if not is_utf8:
                value = decoded(value.encode("utf-8", "surrogateescape"), label)
            fields.setdefault(name.lower(), []).append(value)
            count += 1
        else:
            line = _ENVELOPE.match(text, at)
            if line is None:
                return fields, text[at:].encode("utf-8", "surrogateescape") + raw[len(head) :]
        at = line.end()
    return fields, body


def one_line_end(raw: bytes) -> bytes:
    """Replace every line ending by LF: CR LF, CR CR LF (from broken transports) and CR."""
    if b"\r" not in raw:
        return raw
    if b"\n" not in raw:
        return raw.replace(b"\r", b"\n")
    raw = raw.replace(b"\r\n", b"\n")
    return raw.replace(b"\r\n", b"\n") if b"\r" in raw else raw


def first(headers: Headers, name: str) -> str | None:
    """Return the first field of this name, on one line and trimmed; None if it is absent or blank."""
    values = headers.get(name)
    return on_one_line(values[0]) or None if values else None


def on_one_line(value: str) -> str:
    if "\n" in value or "\r" in value:
        value = value.replace("\r", "").replace("\n", "")
    return value.strip()


# Parameters, for example of Content-Type.


def with_parameters(value: str | None) -> tuple[str, dict[str, str]]:
    """Return the value and its parameters, names in lower case. The first of two equal names counts."""
    if not value:
        return "", {}
    parameters: dict[str, str] = {}
    if ";" in value:
        for found in itertools.islice(_PARAMETER.finditer(value), PARAMETERS_MAX):
            name, quoted, plain = found.groups()
            text = plain.strip() if quoted is None else _ESCAPED.sub(r"\1", quoted)
            parameters.setdefault(name.lower(), text)
    return value.partition(";")[0].strip().lower(), parameters


def parameter(parameters: Mapping[str, str], name: str) -> str | None:
    """Decode a parameter: plain, split or with a charset (RFC 2231), or with encoded words (against RFC 2047)."""
    if f"{name}*" in parameters:
        pieces = [(parameters[f"{name}*"], True)]
    else:
        pieces = []
        for number in range(PARAMETERS_MAX):
            if (piece := parameters.get(f"{name}*{number}*")) is not None:
                pieces.append((piece, True))
            elif (piece := parameters.get(f"{name}*{number}")) is not None:
                pieces.append((piece, False))
            else:
                break
    if not pieces:
        plain = parameters.get(name)
        return None if plain is None else words_decoded(plain)
    label = None
    text, is_encoded = pieces[0]
    if is_encoded and text.count("'") >= 2:  # noqa: PLR2004  # charset'language'text
        label, _, text = text.split("'", 2)
        pieces[0] = text, True
    return decoded(b"".join(_piece_bytes(*piece) for piece in pieces), label)


def _piece_bytes(text: str, is_encoded: bool) -> bytes:
    return urllib.parse.unquote_to_bytes(text) if is_encoded else text.encode("utf-8", "replace")


# Addresses and identifiers.


def mailboxes(value: str) -> list[str]:
    """Split a list into addresses with their names, undecoded. Group names (`Team: a@example.com;`) are left out."""
    found: list[str] = []
    parts: list[str] = []
    closing = ""
    for piece in _ADDRESS_PIECE.findall(value[:LIST_LENGTH_MAX]):
        if closing:
            # Separators inside a quote, comment or angle bracket do not count.
            closing = "" if piece == closing else closing
        elif piece in _CLOSING:
            closing = _CLOSING[piece]
        elif piece in _BETWEEN:
            if piece != ":":
                found.append("".join(parts))
            parts = []
            continue
        parts.append(piece)
    found.append("".join(parts))
    return [mailbox for mailbox in map(str.strip, found) if mailbox]


def author_of(mailbox: str) -> str:
    """Return the decoded display name of a mailbox, else its address."""
    name, bracket, address = mailbox.rpartition("<")
    if not bracket:
        address, _, name = mailbox.partition("(")
        name = name.rpartition(")")[0]
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = _ESCAPED.sub(r"\1", name[1:-1]).strip()
    return words_decoded(name) or address.partition(">")[0].strip()


def identifiers(value: str | None) -> list[str]:
    """Return the message ids of In-Reply-To or References: in angle brackets, else separated by white space."""
    if value is None:
        return []
    value = value[:LIST_LENGTH_MAX]
    return _IDENTIFIER.findall(value) or [f"<{word}>" for word in value.split()]
