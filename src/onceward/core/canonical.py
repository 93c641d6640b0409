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
    if _is_plain(value):
        # For ASCII text and small integers the standard library writes the same bytes, several times faster.
        return _plain(value).encode("ascii")
    try:
        return rfc8785.dumps(value)
    except (ValueError, RecursionError) as error:
        raise InvalidKey(f"no canonical JSON form: {error}") from error


def _is_plain(value: Json, depth: int = 8) -> bool:
    kind = type(value)
    if kind is str:
        return value.isascii()  # type: ignore[union-attr]  # narrowed by type(), which mypy does not follow
    if value is None or kind is bool:
        return True
    if kind is int:
        return -INTEGER_MAX <= value <= INTEGER_MAX  # type: ignore[operator]
    if depth == 0:
        return False
    if kind is list:
        return all(_is_plain(item, depth - 1) for item in value)  # type: ignore[union-attr]
    if kind is dict:
        return all(
            type(name) is str and name.isascii() and _is_plain(item, depth - 1)
            for name, item in value.items()  # type: ignore[union-attr]
        )
    return False
