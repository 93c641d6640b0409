"""Batch insert: many entries in one transaction and few statements, with the same results as one after the other.

One statement searches for all entries and inserts the first one of each key. Entries that were found are decided in
memory, in order, each on top of the results of those before it. An entry that has to wait, for an earlier entry or for
the lock on a row, is decided in the next round. Updates are written at the end, one row for each entry, however often
it changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast

from onceward.errors import Conflict, InvalidInput, OncewardError, TransactionConflict
from onceward.hub.ingest.entries.columns import POLICY_ID, PRIMARY, SECONDARY
from onceward.hub.ingest.entries.decision import POSITION, EntryDecision, Row, changes, decide
from onceward.hub.ingest.entries.draft import Draft
from onceward.hub.ingest.entries.table import ENTRY_ID, ID, EntryTable

# Rounds without progress before giving up. In such a round, another transaction's entry prevented an insert and was
# deleted before it could be read.
_ROUNDS_IN_VAIN = 5

_POLICY_ID = POSITION[POLICY_ID]
_PRIMARY, _SECONDARY = POSITION[PRIMARY], POSITION[SECONDARY]

Key: TypeAlias = tuple[int, str]
# An error stands for an entry that has failed validation.
Drafts: TypeAlias = Sequence[Draft | OncewardError]


class EntryOutcome(NamedTuple):
    """Outcome of one item. `row` is the entry afterwards, `changed` the columns that an update changed."""

    action: Literal["inserted", "updated", "skipped", "failed"]
    row: Row | None = None
    changed: tuple[str, ...] = ()
    matched_on: Literal["primary", "secondary"] | None = None
    split_with: str | None = None
    duplicate_of: int | None = None
    is_stale: bool = False
    error: OncewardError | None = None


class Batch:
    """A batch of entries; it runs once. New entries get `ids`, and `at` is the time of all changes.

    A batch may be part of a larger one: `places` are the indexes of its items there, and `firsts` maps each entry id to
    the index of the first item that concerned the entry.
    """

    def __init__(
        self,
        table: EntryTable,
        drafts: Drafts,
        ids: Sequence[str],
        at: str,
        firsts: dict[int, int] | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        self._table = table
        self._at = at
        self._outcomes: list[EntryOutcome | None] = [
            EntryOutcome("failed", error=draft) if isinstance(draft, OncewardError) else None for draft in drafts
        ]
        # Only drafts without an outcome are read, so no errors.
        self._drafts = cast("Sequence[Draft]", drafts)
        self._ids = ids
        self._places = range(len(drafts)) if places is None else places
        self._firsts = {} if firsts is None else firsts
        # Known entries by id, and their ids by key.
        self._known: dict[int, Row] = {}
        self._by_primary: dict[Key | None, int] = {}
        self._by_secondary: dict[Key | None, int] = {}
        # Entries inserted or locked by this transaction. Their rows here are newer than those that a query returns.
        self._ours: set[int] = set()
        self._changed: set[int] = set()

    def run(self) -> list[EntryOutcome]:
        """Decide and write all entries; `TransactionConflict` if other transactions keep interfering."""
        left = [number for number, outcome in enumerate(self._outcomes) if outcome is None]
        first, others = self._first_of_their_kind(left)
        in_vain = 0
        while left:
            self._find_and_insert(first, others)
            before = len(left)
            left, to_insert = self._decide_all(left)
            first = [number for number in left if number in to_insert]
            others = [number for number in left if number not in to_insert]
            in_vain = 0 if len(left) < before else in_vain + 1
            if in_vain == _ROUNDS_IN_VAIN:
                raise TransactionConflict("other transactions keep inserting and deleting the same entries; try again")
        if self._changed:
            self._table.update([self._known[entry_id] for entry_id in sorted(self._changed)])
        return cast("list[EntryOutcome]", self._outcomes)

    def _first_of_their_kind(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """Split items into those that share no key with an earlier item, and the others. Hints count as keys here."""
        first: list[int] = []
        others: list[int] = []
        primaries: set[Key | None] = set()
        secondaries: set[Key | None] = set()
        for number in numbers:
            draft = self._drafts[number]
            shares = draft.primary in primaries or draft.secondary in secondaries
            (others if shares else first).append(number)
            if draft.primary is not None:
                primaries.add(draft.primary)
            if draft.secondary is not None:
                secondaries.add(draft.secondary)
        return first, others

    def _find_and_insert(self, first: Sequence[int], others: Sequence[int]) -> None:
        rows_to_insert, rows_to_find = self._rows_of(first), self._rows_of(others)
        result = self._table.find_and_insert(rows_to_insert, rows_to_find)
        numbers = {self._ids[number]: number for number in first}
        # Forget older results for these keys, except our own entries: they have just been read again.
        if self._known:
            self._forget((*rows_to_insert, *rows_to_find))
        for row in result.found:
            if row[ENTRY_ID] not in self._ours:
                self._learn(row)
        for row in result.inserted:
            number = numbers[row[ID]]
            self._outcomes[number] = EntryOutcome("inserted", row)
            self._firsts[row[ENTRY_ID]] = self._places[number]
        if others or len(result.inserted) < len(first):
            # Later items may find them.
            for row in result.inserted:
                self._learn(row)
                self._ours.add(row[ENTRY_ID])

    def _rows_of(self, numbers: Sequence[int]) -> list[Row]:
        """Return the rows to insert, without hints that a known entry has."""
        rows: list[Row] = []
        for number in numbers:
            draft = self._drafts[number]
            row = (None, self._ids[number], self._at, self._at, *draft.values)
            if draft.secondary in self._by_secondary and draft.policy and draft.policy.secondary_role == "hint":
                row = (*row[:_SECONDARY], None)
            rows.append(row)
        return rows

    def _learn(self, row: Row) -> None:
        entry_id, policy_id = row[ENTRY_ID], row[_POLICY_ID]
        self._known[entry_id] = row
        if row[_PRIMARY] is not None:
            self._by_primary[policy_id, row[_PRIMARY]] = entry_id
        if row[_SECONDARY] is not None:
            self._by_secondary[policy_id, row[_SECONDARY]] = entry_id

    def _forget(self, rows: Iterable[Row]) -> None:
        """Forget the entries of the keys in these rows. The rows lack hints that a known entry has: nothing read those."""
        for row in rows:
            policy_id = row[_POLICY_ID]
            for found, key in ((self._by_primary, row[_PRIMARY]), (self._by_secondary, row[_SECONDARY])):
                if found.get((policy_id, key)) not in self._ours:
                    found.pop((policy_id, key), None)

    def _decide_all(self, numbers: Sequence[int]) -> tuple[list[int], set[int]]:
        """Decide as many items as possible; return the remaining ones, and which of them are to be inserted."""
        while True:
            left, to_insert, to_lock = self._decide_some(numbers)
            if not to_lock:
                return left, to_insert
            locked = self._table.lock(to_lock)
            for row in locked:
                self._learn(row)
                self._ours.add(row[ENTRY_ID])
            gone = to_lock - {row[ENTRY_ID] for row in locked}
            for found in (self._by_primary, self._by_secondary):
                for key in [key for key, entry_id in found.items() if entry_id in gone]:
                    del found[key]
            numbers = left

    def _decide_some(self, numbers: Sequence[int]) -> tuple[list[int], set[int], set[int]]:
        left: list[int] = []
        to_insert: set[int] = set()
        to_lock: set[int] = set()
        # Keys and rows that undecided items may still change. Later items that use them must wait.
        primaries: set[Key | None] = set()
        secondaries: set[Key | None] = set()
        rows: set[int | None] = set()
        for number in numbers:
            if self._outcomes[number] is not None:
                continue
            draft = self._drafts[number]
            primary, secondary = draft.primary, draft.secondary
            by_primary, by_secondary = self._by_primary.get(primary), self._by_secondary.get(secondary)
            decision = decide(draft.policy, by_primary, by_secondary)
            target, split_with = decision.target, decision.split_with
            if left and (primary in primaries or secondary in secondaries or target in rows or split_with in rows):
                pass
            elif target is None:
                to_insert.add(number)
            elif (outcome := self._outcome(number, draft, decision, target)) is not None:
                self._outcomes[number] = outcome
                continue
            else:
                to_lock.add(target)
            left.append(number)
            # A key that an entry already has stays with it, so items that share it need not wait for each other.
            if primary is not None and by_primary is None:
                primaries.add(primary)
            if secondary is not None and by_secondary is None:
                secondaries.add(secondary)
            rows |= {target, split_with} - {None}
        return left, to_insert, to_lock

    def _outcome(self, number: int, draft: Draft, decision: EntryDecision, target: int) -> EntryOutcome | None:
        """Decide an item whose entry exists; None if its row has to be locked first."""
        row = self._known[target]
        other = None if decision.split_with is None else self._known[decision.split_with][ID]
        if other is not None and draft.is_strict:
            message = f"its primary key belongs to entry {row[ID]}, and its secondary key to entry {other}"
            return EntryOutcome("failed", error=Conflict(message))
        changed: dict[str, object] = {}
        is_stale = False
        if decision.action == "update":
            try:
                changed, is_stale = changes(
                    row,
                    draft,
                    primary_is_free=draft.primary not in self._by_primary,
                    secondary_is_free=draft.secondary not in self._by_secondary,
                )
            except InvalidInput as error:
                return EntryOutcome("failed", error=error)
        if changed:
            if target not in self._ours and not self._table.is_alone:
                return None
            row = self._change(row, changed)
        place = self._places[number]
        first = self._firsts.setdefault(target, place)
        return EntryOutcome(
            "skipped" if decision.action == "skip" else "updated",
            row,
            tuple(changed),
            decision.matched_on,
            other,
            None if first == place else first,
            is_stale,
        )

    def _change(self, row: Row, changed: dict[str, object]) -> Row:
        values = list(row)
        for name, value in changed.items():
            values[POSITION[name]] = value
        values[POSITION["updated_at"]] = self._at
        self._learn(tuple(values))
        self._ours.add(row[ENTRY_ID])
        self._changed.add(row[ENTRY_ID])
        return tuple(values)
