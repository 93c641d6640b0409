"""Typed reads from a JSON object: a value of the wrong type raises `InvalidInput` with the path of the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onceward.core.canonical import Json
from onceward.core.json_text import bytes_of, refused

# 64 bits, which every database and nearly every program can store. Telegram's ids have at most 52 significant bits.
NUMBER_MIN, NUMBER_MAX = -(2**63), 2**63 - 1

# How much of a wrong value a message shows.
_SHOWN_LENGTH_MAX, _SHOWN_BITS_MAX = 32, 128
_NUMBER = re.compile(r"-?[0-9]{1,19}")


class Fields(NamedTuple):
    """A JSON object and its path in the message. A null field counts as absent."""

    sent: Mapping[str, Json]
    path: str = ""

    def has(self, name: str) -> bool:
        return self.sent.get(name) is not None

    def place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def text(self, name: str) -> str | None:
        """Return the string unchanged; None if absent."""
        value = self.sent.get(name)
        return None if value is None else storable(self.place(name), value)

    def label(self, name: str) -> str | None:
        """Return a short text such as a name, with one space between its words; None if absent or blank."""
        value = self.text(name)
        return None if value is None else " ".join(value.split()) or None

    def number(self, name: str) -> int | None:
        """Return a whole number. It may be a string, as some programs send it to keep its precision."""
        value = self.sent.get(name)
        return None if value is None else whole_number(self.place(name), value)

    def within(self, name: str) -> Fields:
        """Return the object of that name; an empty one if absent."""
        value = self.sent.get(name)
        if value is None:
            return Fields({}, self.place(name))
        return object_at(self.place(name), value)

    def each(self, name: str) -> Iterator[Fields]:
        """Yield the objects in the list of that name."""
        for index, value in enumerate(self.items(name)):
            yield object_at(f"{self.place(name)}[{index}]", value)

    def items(self, name: str) -> list[Json]:
        value = self.sent.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise refused(self.place(name), "must be a list")
        return value


def storable(place: str, value: Json) -> str:
    """Return the value if it is a string that every database can store."""
    if not isinstance(value, str):
        raise refused(place, "must be a string")
    if "\0" in value:
        raise refused(place, "must not contain a NUL character")
    if not value.isascii():
        bytes_of(place, value)
    return value


def whole_number(place: str, value: Json) -> int:
    """Return the whole number, which may be given as a string. The error names the range and the value found."""
    number = value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        number = int(value.strip())
    if isinstance(number, bool) or not isinstance(number, int) or not NUMBER_MIN <= number <= NUMBER_MAX:
        raise refused(place, f"must be a whole number from {NUMBER_MIN} to {NUMBER_MAX}, got {_shown(value)}")
    return number


def _shown(value: Json) -> str:
    if isinstance(value, str):
        cut = "" if len(value) <= _SHOWN_LENGTH_MAX else "…"
        return f"{value[:_SHOWN_LENGTH_MAX] + cut!r}"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    # Python refuses to format an integer of thousands of digits.
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        return f"a number of {value.bit_length()} bits"
    return "null" if value is None else str(value).lower()


def object_at(place: str, value: Json | Mapping[str, Json]) -> Fields:
    """Return the object with its path; an empty path stands for the whole message."""
    if not isinstance(value, Mapping):
        raise refused(place or "A message", "must be an object")
    return Fields(value, place)
