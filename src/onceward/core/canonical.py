"""Canonical JSON (RFC 8785): one byte string for one value, whatever the key order or number spelling."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder
from typing import TypeAlias

import rfc8785

from onceward.errors import InvalidKey

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

# Beyond this an IEEE 754 double cannot tell two neighbouring integers apart, so RFC 8785 has no form for them.
INTEGER_MAX = 2**53 - 1


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


def plain_form(value: object) -> bytes | None:
    """As `canonical` for what is made of ASCII text and small integers, several times faster; None for all else."""
    if type(value) is str:
        return encoder.encode_basestring(value).encode("ascii") if value.isascii() else None
    return _sorted(value).encode("ascii") if is_plain(value) else None


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
        for name, item in value.items():
            if type(name) is not str or not name.isascii() or not is_plain(item, depth - 1):
                return False
        return True
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
