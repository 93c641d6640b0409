"""What a batch needs of the table of entries, whichever database it is in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from onceward.ingest.columns import POLICY_ID, PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Row

ENTRY_ID, ID = POSITION["entry_id"], POSITION["id"]
_POLICY_ID, _PRIMARY, _SECONDARY = POSITION[POLICY_ID], POSITION[PRIMARY], POSITION[SECONDARY]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry to look for, as the row that it would be. It is inserted too if `is_first`: no other one before it in
    the batch could be the same. A hint finds nothing, and is left away where another entry has it.
    """

    row: Row
    is_hint: bool
    is_first: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """Which entries were there, and which were inserted."""

    found: list[Row]
    inserted: list[Row]


class Rows(Protocol):
    """The entries of a schema, inside one transaction."""

    # Whether nobody else can change any row meanwhile.
    is_alone: bool

    def find(self, wanted: Sequence[Wanted]) -> list[Row]:
        """The entries that have a key of one of these, each once."""
        ...

    def look_and_insert(self, wanted: Sequence[Wanted]) -> Looked:
        """Find, and insert those of them that are first and were not found."""
        ...

    def lock(self, entry_ids: Iterable[int]) -> list[Row]:
        """The rows of these ids as they are now, and stay until the end of the transaction."""
        ...

    def read(self, entry_ids: Sequence[int]) -> list[Row]:
        """Those of these ids that are there."""
        ...

    def update(self, rows: Sequence[Row]) -> None: ...


def new_rows(wanted: Sequence[Wanted], found: Sequence[Row]) -> list[Row]:
    """Which of them are to be inserted: the first ones that are not there, without a hint that another one has."""
    if not found:
        return [one.row for one in wanted if one.is_first]
    primaries = {(row[_POLICY_ID], row[_PRIMARY]) for row in found if row[_PRIMARY] is not None}
    secondaries = {(row[_POLICY_ID], row[_SECONDARY]) for row in found if row[_SECONDARY] is not None}
    new = []
    for one in wanted:
        row = one.row
        by_secondary = (row[_POLICY_ID], row[_SECONDARY]) in secondaries
        if not one.is_first or (row[_POLICY_ID], row[_PRIMARY]) in primaries or (by_secondary and not one.is_hint):
            continue
        new.append((*row[:_SECONDARY], None) if by_secondary else row)
    return new
