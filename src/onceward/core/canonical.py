"""Canonical JSON (RFC 8785): equal values give the same bytes, whatever their key order and number spelling."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from json import encoder
from typing import TypeAlias

import rfc8785

from onceward.errors import InvalidKey

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

# Beyond this, an IEEE 754 double cannot represent every integer, so RFC 8785 has no form for them.
INTEGER_MAX = 2**53 - 1
# A larger or deeper value takes the slower path for values that are not plain.
_PLAIN_LEVELS_MAX = 9
_PLAIN_ITEMS_MAX = 4_000_000


def writer(*, sort_keys: bool) -> Callable[[object], str]:
    """Return a function that writes JSON without spaces.

    Its output is that of `json.JSONEncoder`, which creates a C encoder for each value. Here it is created once, to save
    time.
    """
    plain = json.JSONEncoder(ensure_ascii=False, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
    make = encoder.c_make_encoder  # type: ignore[attr-defined]  # not in the type stubs
    if make is None:  # a Python without the C accelerator
        return plain.encode
    write = make(None, plain.default, encoder.encode_basestring, None, ":", ",", sort_keys, False, False)
    join = "".join
    return lambda value: join(write(value, 0))


_sorted = writer(sort_keys=True)


def canonical(value: Json) -> bytes:
    """Return the RFC 8785 bytes of a JSON value.

    Raises `InvalidKey` for values that have none: NaN, integers over 2^53-1 and lone surrogates.
    """
    plain = plain_form(value)
    if plain is not None:
        return plain
    try:
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as error:
        raise InvalidKey(f"the value has no canonical JSON form: {error}") from error


def plain_form(value: object, size_max: int = sys.maxsize) -> bytes | None:
    """Return the same bytes as `canonical`, several times faster, for values of ASCII text and small integers.

    Returns None for all other values, and for those whose estimated size is over `size_max`.
    """
    if type(value) is str:
        return encoder.encode_basestring(value).encode("ascii") if value.isascii() else None
    size = plain_size(value)
    return None if size is None or size > size_max else _sorted(value).encode("ascii")


def plain_size(value: object) -> int | None:
    """Estimate the JSON size of a plain value: ASCII text and small integers, nested a few levels. None for all others.

    The standard library's JSON of a plain value is already canonical. Shared parts can make a small value huge when it
    is written out: a list that contains another twice, which contains the next one twice, or a long text in many
    places. The limit on items detects the first case, the returned size the second.
    """
    level: list[object] = [value]
    size = 0
    for _ in range(_PLAIN_LEVELS_MAX):
        inside: list[object] = []
        for item in level:
            if type(item) is str:
                if not item.isascii():
                    return None
                size += len(item)
            elif type(item) is int:
                if not -INTEGER_MAX <= item <= INTEGER_MAX:
                    return None
            elif type(item) is dict:
                for name in item:
                    if type(name) is not str or not name.isascii():
                        return None
                    size += len(name)
                inside += item.values()
                if len(inside) > _PLAIN_ITEMS_MAX:
                    return None
            elif type(item) is list:
                inside += item
                if len(inside) > _PLAIN_ITEMS_MAX:
                    return None
            elif item is not None and type(item) is not bool:
                return None
        size += len(level)
        if not inside:
            return size
        level = inside
    return None


def same_value(one: Json, other: Json) -> bool:
    """Return whether two values are the same JSON, ignoring the order of keys and the spelling of numbers."""
    try:
        return canonical(one) == canonical(other)
    except InvalidKey:
        return _is_same(one, other)


def _is_same(one: Json, other: Json) -> bool:
    """Compare values with integers that have no canonical form. True equals 1 in Python, but not in JSON."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other
