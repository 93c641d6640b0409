"""Entry table: the protocol that a batch uses, implemented for each database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from onceward.hub.ingest.entries.columns import POLICY_ID, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.decision import POSITION, Row

ENTRY_ID, ID = POSITION["entry_id"], POSITION["id"]
_POLICY_ID, _PRIMARY, _SECONDARY = POSITION[POLICY_ID], POSITION[PRIMARY], POSITION[SECONDARY]


class LookupResult(NamedTuple):
    """The entries that existed, and those that were inserted."""

    found: Sequence[Row]
    inserted: Sequence[Row]


class EntryReader(Protocol):
    """A search for entries by their keys."""

    def find(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return every entry that has a key of one of these rows, each once."""
        ...


class EntryTable(EntryReader, Protocol):
    """The entries of a schema within one transaction. Rows to insert have no `entry_id` yet."""

    # Whether this transaction is the only writer, so that rows need no locks.
    is_alone: bool

    def take_turn(self) -> None:
        """Wait until no other batch is running."""
        ...

    def lock_table(self) -> None:
        """Wait for all other writers, and keep them out until the end of the transaction."""
        ...

    def find_and_insert(self, first: Sequence[Row], others: Sequence[Row]) -> LookupResult:
        """Find every entry that has a key of one of these rows, each once, and insert the rows of `first` not found.

        A hint finds nothing, but only one entry can have it. A later row is inserted without the hint.
        """
        ...

    def lock(self, entry_ids: Iterable[int]) -> Sequence[Row]:
        """Lock the rows of these ids until the end of the transaction, and return their current values."""
        ...

    def update(self, rows: Sequence[Row]) -> None: ...


def new_rows(first: Sequence[Row], found: Sequence[Row], hint_policies: Collection[int]) -> Sequence[Row]:
    """Return the rows of `first` to insert: those not found, without hints that other entries have."""
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
