"""Canonical JSON (RFC 8785): one byte string for one value, whatever the key order or number spelling."""

from __future__ import annotations

import json
from typing import TypeAlias

import rfc8785

from onceward.errors import InvalidKey

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

# Beyond this an IEEE 754 double cannot tell two neighbouring integers apart, so RFC 8785 has no form for them.
INTEGER_MAX = 2**53 - 1

_plain = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(value: Json) -> bytes:
    """The RFC 8785 bytes of a JSON value; `InvalidKey` when it has none (NaN, integers over 2^53-1, lone surrogates)."""
    if is_plain(value):
        # For ASCII text and small integers the standard library writes the same bytes, several times faster.
        return _plain(value).encode("ascii")
    try:
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as error:
        raise InvalidKey(f"no canonical JSON form: {error}") from error


def is_plain(value: object, depth: int = 8) -> bool:
    """Whether the standard library's JSON of this value is canonical already: ASCII text and small integers."""
    if type(value) is str:
        return value.isascii()
    if value is None or type(value) is bool:
        return True
    if type(value) is int:
        return -INTEGER_MAX <= value <= INTEGER_MAX
    if depth == 0:
        return False
    if type(value) is list:
        return all(is_plain(item, depth - 1) for item in value)
    if type(value) is dict:
        return all(type(name) is str and name.isascii() and is_plain(item, depth - 1) for name, item in value.items())
    return False


def same_value(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON, whatever the order of their keys and the spelling of their numbers."""
    try:
        return canonical(one) == canonical(other)
    except InvalidKey:
        return _is_same(one, other)


def _is_same(one: Json, other: Json) -> bool:
    """For values with integers that no canonical form can tell apart. Python takes True for 1; JSON does not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other
