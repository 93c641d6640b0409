"""JSON, JSON Lines and tables: text formats that are checked by parsing, as a whole if the file is small enough."""

# ruff: noqa: PLR2004 - the numbers are clear from their context.
from __future__ import annotations

import csv
import io
import json
import re
from typing import Any

from onceward.hub.media.sample import Sample

JSON = "application/json"
LINES = "application/x-ndjson"
# Documents up to this size are parsed as a whole. It is also the hub's limit for JSON bodies.
JSON_WHOLE_BYTES = 1024 * 1024
# A larger document must begin with this much valid JSON, and its last character must close its first bracket.
_JSON_BEGINNING_CHARACTERS = 8 * 1024
_LINES_MAX = 50
_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<open>[\[{])|(?P<close>[\]}])|(?P<comma>,)|(?P<colon>:)"
    r"|(?P<text>\"(?:[^\"\\\x00-\x1f]|\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))*\")"
    r"|(?P<value>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null))"
)
# The rest at the end of a truncated beginning: nothing, an unfinished string, or a part of a word.
_CUT = re.compile(r"[ \t\r\n]*(?:\"(?:[^\"\\\x00-\x1f]|\\[^\x00-\x1f])*\\?|-?[\d.eE+-]*|[truefalsn]{1,4})")
_CLOSES = {"{": "}", "[": "]"}
# Kinds of JSON that are recognized by their keys, all of which must be present.
_KINDS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"nbformat", "cells"}), "application/x-ipynb+json"),
    (frozenset({"nbformat", "worksheets"}), "application/x-ipynb+json"),
    (frozenset({"@context", "@type"}), "application/ld+json"),
    (frozenset({"@context", "@graph"}), "application/ld+json"),
)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _parsed(text: str) -> Any:
    """Return a JSON object or array, or None for anything else; other values do not count as JSON here."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _kind(value: Any) -> str:
    if not isinstance(value, dict):
        return JSON
    # Not a set: in a JSON Schema, the type may be a list, which has no hash.
    if value.get("type") in ("FeatureCollection", "Feature") and ("features" in value or "geometry" in value):
        return "application/geo+json"
    if isinstance(value.get("asset"), dict) and "version" in value["asset"] and value.keys() & {"scenes", "meshes"}:
        return "model/gltf+json"
    return next((media_type for keys, media_type in _KINDS if keys <= value.keys()), JSON)


def _begins_as_json(text: str) -> bool:
    """Return whether the text could be the beginning of a JSON document."""
    text = text[:_JSON_BEGINNING_CHARACTERS]
    place, within, state = 0, "", "value"
    while token := _TOKEN.match(text, place):
        kind, found = token.lastgroup, token[0].strip()
        if kind == "open" and state in {"value", "value or end"}:
            within += found
            state = "key or end" if found == "{" else "value or end"
        elif kind == "close" and state in {"key or end", "value or end", "next"} and _CLOSES.get(within[-1:]) == found:
            within = within[:-1]
            state = "next"
        elif kind == "comma" and state == "next" and within:
            state = "key" if within.endswith("{") else "value"
        elif kind == "colon" and state == "colon":
            state = "value"
        elif kind == "text" and state in {"key", "key or end"}:
            state = "colon"
        elif kind in {"text", "value"} and state in {"value", "value or end"}:
            state = "next"
        else:
            return False
        place = token.end()
    return _CUT.fullmatch(text, place) is not None


def json_type(sample: Sample, text: str, encoding_is_plain: bool) -> str | None:
    """Detect a JSON document, or JSON Lines."""
    stripped = text.lstrip(" \t\r\n")
    if stripped[:1] not in _CLOSES:
        return None
    if sample.size <= JSON_WHOLE_BYTES:
        whole = text if sample.is_whole or not encoding_is_plain else _utf8(sample.read(0, sample.size))
        value = None if whole is None else _parsed(whole)
        if value is not None:
            return _kind(value)
    elif _begins_as_json(stripped) and sample.tail().rstrip()[-1:] == _CLOSES[stripped[0]].encode():
        return JSON
    return lines_type(text, is_whole=sample.is_whole)


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def lines_type(text: str, *, is_whole: bool) -> str | None:
    lines = _records(text, is_whole=is_whole)
    return LINES if len(lines) > 1 and all(_parsed(line) is not None for line in lines) else None


def _records(text: str, *, is_whole: bool) -> list[str]:
    """Return the first non-blank lines, without a last line that may be truncated."""
    lines = re.split(r"\r\n|\n|\r", text, maxsplit=2 * _LINES_MAX)
    if not is_whole or len(lines) > 2 * _LINES_MAX:
        lines.pop()
    return [line for line in lines if line.strip()][:_LINES_MAX]


def table_type(text: str, *, is_whole: bool) -> str | None:
    """Detect tables separated by comma, semicolon or tab, whose records all have the same width. Only a guess."""
    lines = _records(text, is_whole=is_whole)
    if len(lines) < 2:  # A single line is not a table.
        return None
    for delimiter, media_type in (("\t", "text/tab-separated-values"), (",", "text/csv"), (";", "text/csv")):
        if delimiter in lines[0] and _is_table(lines, delimiter):
            return media_type
    return None


def _is_table(lines: list[str], delimiter: str) -> bool:
    try:
        rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    if len(rows) > 2 and len(lines) == _LINES_MAX:
        rows.pop()  # The last line that was read may end inside quotes.
    widths = {len(row) for row in rows}
    if len(widths) != 1 or len(rows) < 2 or widths == {1}:
        return False
    # Prose has commas, too, but a blank follows them, and its sentences end with punctuation.
    after_blank = sum(field.startswith(" ") for row in rows for field in row[1:])
    fields = len(rows) * (len(rows[0]) - 1)
    is_prose = delimiter != "\t" and (after_blank > fields / 2 or (len(rows[0]) == 2 and len(rows) == 2))
    is_code = sum(line.rstrip().endswith(("{", "}", "(", ");", "*/")) for line in lines) > 0
    return not is_code and (not is_prose or _is_short(rows))


def _is_short(rows: list[list[str]]) -> bool:
    """Return whether the fields look like values, not parts of sentences: few words each, and no full stop."""
    return all(
        len(field.split()) <= 3 and not field.rstrip().endswith((".", "!", "?")) for row in rows for field in row
    )
