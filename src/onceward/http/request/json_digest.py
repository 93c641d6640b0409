r"""The digest by which JSON bodies are compared: two bodies with the same value have the same digest.

    the order of names in an object     does not matter
    the order of items in an array      matters
    numbers                             compare by their exact decimal value: 1, 1.0 and 10e-1 are equal
    strings                             compare by their characters: "\u00e9" and "é" are equal, no Unicode normalization
    null                                differs from an absent name

A body has no such digest, and is compared byte by byte, if it is not JSON in UTF-8, or if its value is not certain: an
object has a name twice, a string has half of a surrogate pair, or the nesting is deeper than `DEPTH_MAX`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NoReturn

# Deeper bodies are compared byte by byte. Python's parser has a limit that depends on the caller's stack; this one is
# far below it, so that a retry is always compared in the same way.
DEPTH_MAX = 64
# An exponent with more digits is not converted to a number.
_EXPONENT_DIGITS_MAX = 18

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Inexact(Exception):
    """The value of the body is not certain."""


def json_digest(body: bytes) -> bytes | None:
    """Return the digest of the value of a JSON body; None if it has to be compared byte by byte."""
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_object,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_refuse,
        )
        parts: list[str] = []
        _append(value, 0, parts)
    except (ValueError, RecursionError, _Inexact):
        return None
    # The prefix keeps it apart from the digest of any bytes, which is shorter.
    return b"json:" + hashlib.sha256("".join(parts).encode()).digest()


class _Number(str):
    """The canonical form of a number."""

    __slots__ = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Inexact
    return found


def _refuse(_constant: str) -> NoReturn:
    raise _Inexact  # NaN and Infinity are not JSON


def _number(text: str) -> _Number:
    """Return the number as its digits without zeros at both ends, and an exponent."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise _Inexact
    sign, whole, fraction, exponent = found[1], found[2], found[3] or "", found[4] or "0"
    if len(exponent.lstrip("+-")) > _EXPONENT_DIGITS_MAX:
        raise _Inexact
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return _Number("0")
    significant = digits.rstrip("0")
    power = int(exponent) - len(fraction) + len(digits) - len(significant)
    return _Number(f"{sign}{significant}e{power}")


def _append(value: object, depth: int, parts: list[str]) -> None:
    """Append the canonical form of a value."""
    if depth > DEPTH_MAX:
        raise _Inexact
    if isinstance(value, _Number):
        parts.append(value)
    elif isinstance(value, str):
        parts.append(_text(value))
    elif isinstance(value, dict):
        parts.append("{")
        for name in sorted(value):
            parts += (_text(name), ":")
            _append(value[name], depth + 1, parts)
            parts.append(",")
        parts.append("}")
    elif isinstance(value, list):
        parts.append("[")
        for item in value:
            _append(item, depth + 1, parts)
            parts.append(",")
        parts.append("]")
    else:
        parts.append(json.dumps(value))  # true, false, null


def _text(text: str) -> str:
    if _SURROGATE.search(text):
        raise _Inexact
    return json.dumps(text)
