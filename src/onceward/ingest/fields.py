"""Reads an object that was sent: each value has the type it must have, or the refusal names the place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onceward.core.canonical import Json
from onceward.core.text import bytes_of, refused

# Every database and nearly every program keeps such a number. Telegram promises that its ids need 52 bits at most.
NUMBER_MIN, NUMBER_MAX = -(2**63), 2**63 - 1

# Enough of a wrong value to see a mistake by.
_SHOWN_LENGTH_MAX, _SHOWN_BITS_MAX = 32, 128
_NUMBER = re.compile(r"-?[0-9]{1,19}")


class Fields(NamedTuple):
    """An object and where it stands. A field that is null is a field that is not there."""

    sent: Mapping[str, Json]
    path: str = ""

    def has(self, name: str) -> bool:
        return self.sent.get(name) is not None

    def place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def text(self, name: str) -> str | None:
        """As it was sent."""
        value = self.sent.get(name)
        return None if value is None else storable(self.place(name), value)

    def label(self, name: str) -> str | None:
        """A name or the like, with one blank between its words; None for a blank one."""
        value = self.text(name)
        return None if value is None else " ".join(value.split()) or None

    def number(self, name: str) -> int | None:
        """A whole number. Programs that fear for its precision send it as text."""
        value = self.sent.get(name)
        return None if value is None else whole_number(self.place(name), value)

    def within(self, name: str) -> Fields:
        """The object of that name; an empty one if it is not there."""
        value = self.sent.get(name)
        if value is None:
            return Fields({}, self.place(name))
        return object_at(self.place(name), value)

    def each(self, name: str) -> Iterator[Fields]:
        """The objects in the list of that name."""
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
    """A text that every database takes."""
    if not isinstance(value, str):
        raise refused(place, "must be text")
    if "\0" in value:
        raise refused(place, "must not contain the character NUL")
    if not value.isascii():
        bytes_of(place, value)
    return value


def whole_number(place: str, value: Json) -> int:
    """The number, also of a text that spells one. The refusal of anything else names the range and what was found."""
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
    # Python refuses to write a number of thousands of digits.
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS_MAX:
        return f"a number of {value.bit_length()} bits"
    return "null" if value is None else str(value).lower()


def object_at(place: str, value: Json | Mapping[str, Json]) -> Fields:
    """An object and where it stands; the empty place is that of all that was sent."""
    if not isinstance(value, Mapping):
        raise refused(place or "A message", "must be an object")
    return Fields(value, place)
