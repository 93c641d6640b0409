"""Types that are stored as one tagged text, with a function to write and a function to read each."""

from __future__ import annotations

import base64
import datetime
import decimal
import uuid
from collections.abc import Callable
from typing import cast


class Unkeepable(ValueError):
    """The value has a part that neither JSON nor a tag can express."""


def is_text(value: str) -> bool:
    """Return whether the text has no lone surrogates. JSON would join two adjacent ones into one character."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def hidden_text(value: str) -> str:
    """Encode as base64 a text that JSON cannot represent."""
    return base64.b64encode(value.encode("utf-8", "surrogatepass")).decode("ascii")


def _hidden_from_text(text: str) -> object:
    return base64.b64decode(text).decode("utf-8", "surrogatepass")


def _bytes_text(value: object) -> str:
    return base64.b64encode(cast("bytes", value)).decode("ascii")


def _date_text(value: object) -> str:
    return cast("datetime.date", value).isoformat()


def _datetime_text(value: object) -> str:
    timestamp = cast("datetime.datetime", value)
    if timestamp.tzinfo is not None and not isinstance(timestamp.tzinfo, datetime.timezone):
        # A named zone becomes its offset at that time. The result is the same point in time, which is what == compares,
        # except in the hour that a clock shows twice: there, Python treats times in different zones as unequal.
        timestamp = timestamp.replace(tzinfo=datetime.timezone(timestamp.utcoffset() or datetime.timedelta()))
    return f"{timestamp.fold}{timestamp.isoformat()}"


def _datetime_from_text(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text[1:]).replace(fold=int(text[0]))


def _time_text(value: object) -> str:
    time = cast("datetime.time", value)
    if time.tzinfo is not None and time.utcoffset() is None:
        raise Unkeepable("a time of day in a named zone has no fixed offset to store")
    return time.isoformat()


def _timedelta_text(value: object) -> str:
    span = cast("datetime.timedelta", value)
    return f"{span.days}:{span.seconds}:{span.microseconds}"


def _timedelta_from_text(text: str) -> object:
    days, seconds, microseconds = map(int, text.split(":"))
    return datetime.timedelta(days, seconds, microseconds)


_SCALARS: dict[type, tuple[str, Callable[[object], str], Callable[[str], object]]] = {
    bytes: ("bytes", _bytes_text, base64.b64decode),
    bytearray: ("bytearray", _bytes_text, lambda text: bytearray(base64.b64decode(text))),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    datetime.datetime: ("datetime", _datetime_text, _datetime_from_text),
    datetime.date: ("date", _date_text, datetime.date.fromisoformat),
    datetime.time: ("time", _time_text, datetime.time.fromisoformat),
    datetime.timedelta: ("timedelta", _timedelta_text, _timedelta_from_text),
    complex: ("complex", repr, complex),
}

TO_TEXT: dict[type, tuple[str, Callable[[object], str]]] = {kind: row[:2] for kind, row in _SCALARS.items()}
FROM_TEXT: dict[str, Callable[[str], object]] = {name: back for name, _, back in _SCALARS.values()}
# `value.to_json` writes these itself, for numbers and text that JSON cannot represent.
FROM_TEXT |= {"int": lambda text: int(text, 0), "float": float, "text": _hidden_from_text}
