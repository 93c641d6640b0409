"""Messages of an archive, and the protocol of their sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from onceward.hub.ingest.payload import Payload

# Where a run resumes: a byte offset, a count, or a file name, depending on the kind of archive.
Position: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class Item:
    """One message of an archive.

    Attributes:
        where: Its location, for people.
        position: Where a run resumes after this message.
        done: How many bytes of the archive have been read after this message.
        size: Its size in bytes.
        payload: Normalizes the message; None if it has no content (for example, that a person joined). Raises
            `InvalidInput` if it cannot become an entry.
    """

    where: str
    position: Position
    done: int
    size: int
    payload: Callable[[], Payload | None]


class MessageSource(Protocol):
    """An archive, read message by message, from its beginning or from a position, and never as a whole."""

    # Its name as given, and its size in bytes, if known.
    name: str
    total: int | None

    def mark(self) -> str:
        """Return a mark that differs for another archive at the same path, such as a digest of its beginning."""
        ...

    def items(self, after: Position | None) -> Iterator[Item]: ...
