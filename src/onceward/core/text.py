"""Checks of texts and JSON that are stored as rows."""

from __future__ import annotations

import re
from json import encoder

from onceward.core.canonical import Json, writer
from onceward.errors import InvalidInput, TooLarge

_write = writer(sort_keys=False)

quoted = encoder.encode_basestring
"""A text in JSON."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def written(value: object) -> str:
    """Text, numbers and what is made of them, as every row, event and answer has it."""
    if isinstance(value, str):
        return quoted(value)
    return _write(value)


def compact(value: Json) -> str:
    """JSON text without blanks, as it is stored and counted."""
    try:
        return written(value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"no JSON form: {error}") from error


def checked(name: str, text: str, bytes_max: int, *, blank: bool = False) -> str:
    """The text, if it can be stored; `InvalidInput` says what is wrong with which field."""
    if not blank and not text.strip():
        raise refused(name, "must not be blank")
    if "\0" in text:
        raise refused(name, "must not contain the character NUL")
    if bytes_of(name, text) > bytes_max:
        raise refused(name, f"is longer than {bytes_max} bytes")
    return text


def limited(name: str, text: str, bytes_max: int) -> str:
    """As `checked`, for a body: `TooLarge` when it is over its limit."""
    if bytes_of(name, text) > bytes_max:
        raise TooLarge(f"{name} is limited to {bytes_max} bytes")
    return checked(name, text, bytes_max)


def bytes_of(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise refused(name, "has half a character (a lone surrogate)") from None


def has_nul(value: Json) -> bool:
    """Whether the character is in any text of it: PostgreSQL stores none that has it."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any("\0" in name or has_nul(item) for name, item in value.items())
    return isinstance(value, list) and any(map(has_nul, value))


def depth(value: Json) -> int:
    """How many levels of objects and lists there are."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def refused(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"{name} {why}", ((name, why),))
