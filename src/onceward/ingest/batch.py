"""A batch of entries in one transaction, as if they came one after the other, in few statements.

All entries are looked for at once, and the first one of each kind is inserted in the same breath. What was found is
decided in memory, in order, each entry on top of what those before it have done. An entry that has to wait, because
one before it is not decided or a row is to be locked first, has its turn in the next round. Updates are written at the
end, one row for each entry however often it was changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast

from onceward.errors import Conflict, InvalidInput, OncewardError, TransactionConflict
from onceward.ingest.columns import POLICY_ID, PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Decision, Row, changes, decide
from onceward.ingest.draft import Draft
from onceward.ingest.table import ENTRY_ID, ID, EntryTable

# An entry that refuses an insert and is gone before it is looked at was deleted in between; not for ever.
_ROUNDS_IN_VAIN = 5

_POLICY_ID = POSITION[POLICY_ID]
_PRIMARY, _SECONDARY = POSITION[PRIMARY], POSITION[SECONDARY]

Key: TypeAlias = tuple[int, str]
# An error in place of an entry: it has failed already.
Drafts: TypeAlias = Sequence[Draft | OncewardError]


class Outcome(NamedTuple):
    """What became of one entry. `row` is the entry after it, `changed` the columns that an update has changed."""

    action: Literal["inserted", "updated", "skipped", "failed"]
    row: Row | None = None
    changed: tuple[str, ...] = ()
    matched_on: Literal["primary", "secondary"] | None = None
    split_with: str | None = None
    duplicate_of: int | None = None
    is_stale: bool = False
    error: OncewardError | None = None


class Batch:
    """Runs once. Entries get these `ids` if they are new, and `at` as their time.

    A batch may be a part of another one: `places` are those of its items in there, and `firsts` are the first items
    that were about each entry.
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
        self._outcomes: list[Outcome | None] = [
            Outcome("failed", error=draft) if isinstance(draft, OncewardError) else None for draft in drafts
        ]
        # Only those without an outcome are ever asked for.
        self._drafts = cast("Sequence[Draft]", drafts)
        self._ids = ids
        self._places = range(len(drafts)) if places is None else places
        self._firsts = {} if firsts is None else firsts
        # The entries that are known, and how their keys find them.
        self._known: dict[int, Row] = {}
        self._by_primary: dict[Key | None, int] = {}
        self._by_secondary: dict[Key | None, int] = {}
        # Ours until the commit: inserted or locked. What we know of them is newer than what a look shows.
        self._ours: set[int] = set()
        self._changed: set[int] = set()

    def run(self) -> list[Outcome]:
        """Decide and write all of them. `TransactionConflict` when others always come between."""
        left = [number for number, outcome in enumerate(self._outcomes) if outcome is None]
        first, others = self._first_of_their_kind(left)
        in_vain = 0
        while left:
            self._look(first, others)
            before = len(left)
            left, to_insert = self._decide_all(left)
            first = [number for number in left if number in to_insert]
            others = [number for number in left if number not in to_insert]
            in_vain = 0 if len(left) < before else in_vain + 1
            if in_vain == _ROUNDS_IN_VAIN:
                raise TransactionConflict("others insert and delete the same entries all the time; ask again")
        if self._changed:
            self._table.update([self._known[entry_id] for entry_id in sorted(self._changed)])
        return cast("list[Outcome]", self._outcomes)

    def _first_of_their_kind(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """Those that share no key with one before them, and the others. A hint counts: only one entry can have it."""
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

    def _look(self, first: Sequence[int], others: Sequence[int]) -> None:
        looked = self._table.look_and_insert(self._rows_of(first), self._rows_of(others))
        numbers = {self._ids[number]: number for number in first}
        # What was known of these keys, and is not ours, the look has just told anew.
        if self._known:
            self._forget((*first, *others))
        for row in looked.found:
            if row[ENTRY_ID] not in self._ours:
                self._learn(row)
        for row in looked.inserted:
            number = numbers[row[ID]]
            self._outcomes[number] = Outcome("inserted", row)
            self._firsts[row[ENTRY_ID]] = self._places[number]
        if others or len(looked.inserted) < len(first):
            # Somebody will look for them.
            for row in looked.inserted:
                self._learn(row)
                self._ours.add(row[ENTRY_ID])

    def _rows_of(self, numbers: Sequence[int]) -> list[Row]:
        """As they would be inserted; a hint that a known entry has is left away."""
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

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            draft = self._drafts[number]
            for found, key in ((self._by_primary, draft.primary), (self._by_secondary, draft.secondary)):
                if found.get(key) not in self._ours:
                    found.pop(key, None)

    def _decide_all(self, numbers: Sequence[int]) -> tuple[list[int], set[int]]:
        """Decide as many as can be; gives those that are left, and which of them are to be inserted."""
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
        # What those that are left may still change: nobody behind them may look at it.
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
            # A key that an entry has stays with it: many may share a hint, and none of them waits for another.
            if primary is not None and by_primary is None:
                primaries.add(primary)
            if secondary is not None and by_secondary is None:
                secondaries.add(secondary)
            rows |= {target, split_with} - {None}
        return left, to_insert, to_lock

    def _outcome(self, number: int, draft: Draft, decision: Decision, target: int) -> Outcome | None:
        """What becomes of an entry that is there; None when its row has to be locked first."""
        row = self._known[target]
        other = None if decision.split_with is None else self._known[decision.split_with][ID]
        if other is not None and draft.is_strict:
            message = f"its primary key is that of the entry {row[ID]} and its secondary key that of {other}"
            return Outcome("failed", error=Conflict(message))
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
                return Outcome("failed", error=error)
        if changed:
            if target not in self._ours and not self._table.is_alone:
                return None
            row = self._change(row, changed)
        place = self._places[number]
        first = self._firsts.setdefault(target, place)
        return Outcome(
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
