"""One message of an archive, and the archive it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from onceward.ingest.payload import Payload

# Where a run goes on: a byte offset, a count, or the name of a file. Each kind of archive has one of these.
Position: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Item:
    """A message that was found. `payload()` makes an entry of it: None when it is none of anybody's words, such as the
    note that somebody joined; `InvalidInput` when it cannot be one.

    `where` tells a person where it is, `position` is where a run goes on behind it, and `done` is how many bytes of the
    archive are behind it then.
    """

    where: str
    position: Position
    done: int
    size: int
    payload: Callable[[], Payload | None]


class Source(Protocol):
    """An archive, read from its beginning or from a position, message by message, never as a whole."""

    # As it was named, and how many bytes it has, if that can be known.
    name: str
    total: int | None

    def mark(self) -> str:
        """What tells it apart from another archive at the same place, such as a digest of its beginning."""
        ...

    def items(self, after: Position | None) -> Iterator[Item]: ...
