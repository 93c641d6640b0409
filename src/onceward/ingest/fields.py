"""Reads an object that was sent: each value has the type it must have, or the refusal names the place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from onceward.core.canonical import Json
from onceward.core.text import bytes_of, refused

# Telegram promises at most 52 bits; what needs more than 64 is no id and no offset.
NUMBER_MAX = 2**63 - 1

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
        if value is None:
            return None
        number = whole_number(value)
        if number is None:
            raise refused(self.place(name), "must be a whole number")
        return number

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


def whole_number(value: Json) -> int | None:
    """The number, also of a text that spells one; None for anything else, and for what is too large to be an id."""
    if isinstance(value, str):
        value = value.strip()
        if not _NUMBER.fullmatch(value):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -NUMBER_MAX <= value <= NUMBER_MAX else None


def object_at(place: str, value: Json | Mapping[str, Json]) -> Fields:
    """An object and where it stands; the empty place is that of all that was sent."""
    if not isinstance(value, Mapping):
        raise refused(place or "A message", "must be an object")
    return Fields(value, place)
