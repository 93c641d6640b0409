"""What a batch needs of the table of entries, whichever database it is in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from onceward.ingest.columns import POLICY_ID, PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Row

ENTRY_ID, ID = POSITION["entry_id"], POSITION["id"]
_POLICY_ID, _PRIMARY, _SECONDARY = POSITION[POLICY_ID], POSITION[PRIMARY], POSITION[SECONDARY]


class Looked(NamedTuple):
    """Which entries were there, and which were inserted."""

    found: Sequence[Row]
    inserted: Sequence[Row]


class EntryTable(Protocol):
    """The entries of a schema, inside one transaction. Rows that are not there yet have no `entry_id`."""

    # Whether nobody else can change any row meanwhile.
    is_alone: bool

    def take_turn(self) -> None:
        """Wait until no other batch is under way."""
        ...

    def keep_others_away(self) -> None:
        """Wait until nobody else writes, and let nobody."""
        ...

    def look_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> Looked:
        """Find every entry that has a key of one of these, each once, and insert those of `first` that are not there.

        A hint finds nothing, but only one entry can have it: who comes later is inserted without it.
        """
        ...

    def lock(self, entry_ids: Iterable[int]) -> Sequence[Row]:
        """The rows of these ids as they are now, and stay until the end of the transaction."""
        ...

    def read(self, entry_ids: Sequence[int]) -> Sequence[Row]:
        """Those of these ids that are there."""
        ...

    def update(self, rows: Sequence[Row]) -> None: ...


def new_rows(first: Sequence[Row], found: Sequence[Row], hint_policies: Collection[int]) -> Sequence[Row]:
    """Which of them are not there, without the hints that others have."""
    if not found:
        return first
    primaries = {(row[_POLICY_ID], row[_PRIMARY]) for row in found if row[_PRIMARY] is not None}
    secondaries = {(row[_POLICY_ID], row[_SECONDARY]) for row in found if row[_SECONDARY] is not None}
    new = []
    for row in first:
        policy_id = row[_POLICY_ID]
        if (policy_id, row[_PRIMARY]) in primaries:
            continue
        if (policy_id, row[_SECONDARY]) not in secondaries:
            new.append(row)
        elif policy_id in hint_policies:
            new.append((*row[:_SECONDARY], None))
    return new
