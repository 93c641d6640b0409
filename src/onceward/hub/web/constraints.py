"""Constraints of request fields as JSON Schema, for the OpenAPI document.

The functions that store a field check it and have their own messages. A test compares the two. Limits are bytes of
UTF-8, so non-ASCII text reaches them before its `maxLength`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

WEB_URL = r"^[hH][tT][tT][pP][sS]?://(?:[^/?#@\\\s]*@)?(?:\[[0-9a-fA-F:.]+\]|[^/?#@:\[\]\\\s]+)(?::[0-9]{1,5})?(?:[/?#][^\\\s]*)?$"
NO_CONTROL = r"^[^\u0000-\u001f\u007f-\u009f]*$"

REPO_PATH = r"^(?![A-Za-z]:|[A-Za-z][A-Za-z0-9+.-]*://)(?!(?:[\s\S]*/)?\.\.(?:/|$))(?=\s*\S)[^\\/\u0000-\u001f\u007f-\u009f][^\\\u0000-\u001f\u007f-\u009f]*$"
EXPIRY = r"^\s*(?:[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2}))?)?\s*$"
_MEDIA_NAME = r"[a-zA-Z0-9][a-zA-Z0-9!#$&^_.+-]{0,126}"
MEDIA_TYPE = rf"^\s*(?:{_MEDIA_NAME}/{_MEDIA_NAME}\s*(?:;[\s\S]*)?)?$"
BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
LABEL = r"^\s*\S{1,64}\s*$"

NOT_BLANK: Schema = {"minLength": 1, "pattern": r"\S"}

_ABSENT = {"type": "null"}


def text(bytes_max: int, *, blank: bool = False) -> Schema:
    """Text of at most `bytes_max` bytes, stored unchanged."""
    if blank:
        return {"maxLength": bytes_max}
    # Pattern and length are separate: tools need seconds to generate long text from a pattern with a length.
    return {"minLength": 1, "maxLength": bytes_max, "allOf": [{"pattern": r"\S"}]}


def trimmed(bytes_max: int, *, blank: bool = False) -> Schema:
    """Text of at most `bytes_max` bytes, without its leading and trailing whitespace."""
    body = rf"\S(?:[\s\S]{{0,{bytes_max - 2}}}\S)?"
    return {"pattern": rf"^\s*(?:{body})?\s*$" if blank else rf"^\s*{body}\s*$"}


def each_trimmed(separator: str, bytes_max: int) -> Schema:
    """Several texts joined by a separator, each as in `trimmed`."""
    part = rf"\s*[^\s{separator}](?:[^{separator}]{{0,{bytes_max - 2}}}[^\s{separator}])?\s*"
    return {"pattern": rf"^{part}(?:{separator}{part})*$"}


def one_of_words(words: Iterable[str]) -> Schema:
    """One of these words, in any case, with optional whitespace around it."""
    listed = list(words)
    any_case = "|".join("".join(f"[{letter}{letter.upper()}]" for letter in word) for word in listed)
    return {"anyOf": [{"enum": listed}, {"pattern": rf"^\s*(?:{any_case})\s*$"}]}


def exactly_one(*names: str) -> Schema:
    """Require exactly one of these fields; null counts as absent."""
    return {
        "oneOf": [
            {
                "required": [name],
                "properties": {other: {"not": _ABSENT} if other == name else _ABSENT for other in names},
            }
            for name in names
        ]
    }


def not_together(*names: str) -> Schema:
    """Forbid a body that has all of these fields; null counts as absent."""
    return {"not": given(*names)}


def given(*names: str) -> Schema:
    """Require all of these fields; null counts as absent."""
    return {"required": list(names), "properties": {name: {"not": _ABSENT} for name in names}}
