"""Checks of text and JSON before they are stored in rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import encoder

from onceward.core.canonical import Json, writer
from onceward.errors import InvalidInput, TooLarge

_write = writer(sort_keys=False)

quoted = encoder.encode_basestring
"""Write a text as a JSON string."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def written(value: object) -> str:
    """Write a value as the compact JSON that rows, events and responses use."""
    if isinstance(value, str):
        return quoted(value)
    return _write(value)


def compact(value: Json) -> str:
    """Write a value as JSON without spaces, the form that is stored and measured, or raise `InvalidInput`."""
    try:
        return written(value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the value cannot be written as JSON: {error}") from error


def checked(name: str, text: str, bytes_max: int, *, blank: bool = False) -> str:
    """Return the text if it can be stored; otherwise raise `InvalidInput`, which names the field and the reason."""
    if not blank and not text.strip():
        raise refused(name, "must not be blank")
    if "\0" in text:
        raise refused(name, "must not contain a NUL character")
    if bytes_of(name, text) > bytes_max:
        raise refused(name, f"must be at most {bytes_max} bytes")
    return text


def limited(name: str, text: str, bytes_max: int) -> str:
    """Check a body like `checked`, but raise `TooLarge` if it exceeds its limit."""
    if bytes_of(name, text) > bytes_max:
        raise TooLarge(f"{name} is limited to {bytes_max} bytes")
    return checked(name, text, bytes_max)


def bytes_of(name: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise refused(name, "must not contain a lone surrogate (half of a character)") from None


def has_nul(value: Json) -> bool:
    """Return whether any text in the value contains NUL, which PostgreSQL cannot store."""
    return any(
        (isinstance(one, str) and "\0" in one) or (isinstance(one, dict) and any("\0" in name for name in one))
        for level in _levels(value)
        for one in level
    )


def depth(value: Json) -> int:
    """Return the nesting depth of objects and lists."""
    return sum(any(isinstance(one, dict | list) for one in level) for level in _levels(value))


def _levels(value: Json) -> Iterator[list[Json]]:
    """Yield the value, then the items in it, then the items in those.

    Without recursion: since Python 3.13, JSON can be written that is nested deeper than Python functions can be.
    """
    level: list[Json] = [value]
    while level:
        yield level
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]


def refused(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"{name} {why}", ((name, why),))
