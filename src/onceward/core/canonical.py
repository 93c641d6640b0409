"""Canonical JSON (RFC 8785): one byte string for one value, whatever the key order or number spelling."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from json import encoder
from typing import TypeAlias

import rfc8785

from onceward.errors import InvalidKey

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

# Beyond this an IEEE 754 double cannot tell two neighbouring integers apart, so RFC 8785 has no form for them.
INTEGER_MAX = 2**53 - 1
# What is larger goes the way of values that are not plain.
_PLAIN_LEVELS_MAX = 9
_PLAIN_ITEMS_MAX = 4_000_000


def writer(*, sort_keys: bool) -> Callable[[object], str]:
    """What writes JSON without blanks: as the standard encoder does, which makes its own writer anew for each value."""
    plain = json.JSONEncoder(ensure_ascii=False, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
    make = encoder.c_make_encoder  # type: ignore[attr-defined]  # not described
    if make is None:  # some Pythons do without
        return plain.encode
    write = make(None, plain.default, encoder.encode_basestring, None, ":", ",", sort_keys, False, False)
    join = "".join
    return lambda value: join(write(value, 0))


_sorted = writer(sort_keys=True)


def canonical(value: Json) -> bytes:
    """The RFC 8785 bytes of a JSON value; `InvalidKey` when it has none (NaN, integers over 2^53-1, lone surrogates)."""
    plain = plain_form(value)
    if plain is not None:
        return plain
    try:
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as error:
        raise InvalidKey(f"no canonical JSON form: {error}") from error


def plain_form(value: object, size_max: int = sys.maxsize) -> bytes | None:
    """As `canonical` for what is made of ASCII text and small integers, several times faster; None for all else, and for
    what is much longer than `size_max`.
    """
    if type(value) is str:
        return encoder.encode_basestring(value).encode("ascii") if value.isascii() else None
    size = plain_size(value)
    return None if size is None or size > size_max else _sorted(value).encode("ascii")


def plain_size(value: object) -> int | None:
    """About how long the standard library's JSON of this value is, if that is canonical already: ASCII text and small
    integers, nested a few levels. None for all else.

    A list may hold another twice, and that the next one twice: a few of them are more than any memory holds when they are
    written out, and so is a long text in many places. The one is found out here, the other by the size.
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
