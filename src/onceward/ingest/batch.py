"""A batch of entries in one transaction, as if they came one after the other, in few statements.

All entries are looked for at once, and the first one of each kind is inserted in the same breath. What was found is
decided in memory, in order, each entry on top of what those before it have done. An entry that has to wait, because
one before it is not decided or a row is to be locked first, has its turn in the next round. Updates are written at the
end, one row for each entry however often it was changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from onceward.errors import Conflict, InvalidInput, OncewardError, TransactionConflict
from onceward.ingest.columns import PRIMARY, SECONDARY
from onceward.ingest.decide import POSITION, Decision, Row, changes, decide
from onceward.ingest.draft import Draft
from onceward.ingest.wanted import ENTRY_ID, ID, Rows, Wanted

# An entry that refuses an insert and is gone before it is looked at was deleted in between; not for ever.
_ROUNDS_IN_VAIN = 5

_POLICY_ID = POSITION["idempotency_policy_id"]
_PRIMARY, _SECONDARY = POSITION[PRIMARY], POSITION[SECONDARY]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one entry. `row` is the entry after it, `changed` the columns that an update has changed."""

    action: Literal["inserted", "updated", "skipped", "failed"]
    row: Row | None = None
    changed: tuple[str, ...] = ()
    matched_on: Literal["primary", "secondary"] | None = None
    split_with: str | None = None
    duplicate_of: int | None = None
    is_stale: bool = False
    error: OncewardError | None = None


# An error in place of an entry: it has failed already.
Drafts: TypeAlias = Sequence[Draft | OncewardError]


class Batch:
    """Runs once. Entries get these `ids` if they are new, and `at` as their time.

    A batch may be a part of another one: `places` are those of its items in there, and `firsts` are the first items
    that were about each entry.
    """

    def __init__(
        self,
        rows: Rows,
        drafts: Drafts,
        ids: Sequence[str],
        at: str,
        firsts: dict[int, int] | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        self._rows = rows
        self._drafts = drafts
        self._ids = ids
        self._at = at
        self.outcomes: list[Outcome | None] = [
            None if isinstance(draft, Draft) else Outcome("failed", error=draft) for draft in drafts
        ]
        # The entries that are known, and how their keys find them.
        self._known: dict[int, Row] = {}
        self._by_primary: dict[tuple[int, str | None], int] = {}
        self._by_secondary: dict[tuple[int, str | None], int] = {}
        # Ours until the commit: inserted or locked. What we know of them is newer than what a look shows.
        self._ours: set[int] = set()
        self._changed: set[int] = set()
        self._places = range(len(drafts)) if places is None else places
        self._firsts = {} if firsts is None else firsts

    def run(self) -> list[Outcome]:
        """Decide and write all of them. `TransactionConflict` when others always come between."""
        left = [number for number, outcome in enumerate(self.outcomes) if outcome is None]
        firsts = self._first_of_their_kind(left)
        in_vain = 0
        while left:
            self._look(left, firsts)
            before = len(left)
            left, firsts = self._decide_all(left)
            in_vain = 0 if len(left) < before else in_vain + 1
            if in_vain == _ROUNDS_IN_VAIN:
                raise TransactionConflict("others insert and delete the same entries all the time; ask again")
        if self._changed:
            self._rows.update([self._known[entry_id] for entry_id in sorted(self._changed)])
        return [outcome for outcome in self.outcomes if outcome is not None]

    def _draft(self, number: int) -> Draft:
        # Only those without an outcome are asked for.
        return cast("Draft", self._drafts[number])

    def _first_of_their_kind(self, numbers: Iterable[int]) -> set[int]:
        """Those that share no key with one before them; a hint counts, because only one entry can have it."""
        firsts: set[int] = set()
        seen: set[tuple[str, int, str]] = set()
        for number in numbers:
            keys = _keys(self._draft(number))
            if seen.isdisjoint(keys):
                firsts.add(number)
            seen.update(keys)
        return firsts

    def _look(self, numbers: Sequence[int], firsts: set[int]) -> None:
        wanted, place = [], {}
        for number in numbers:
            draft = self._draft(number)
            row: Row = (None, self._ids[number], self._at, self._at, *draft.values)
            is_hint = draft.policy is not None and draft.policy.secondary_role == "hint"
            if is_hint and (row[_POLICY_ID], row[_SECONDARY]) in self._by_secondary:
                row = (*row[:_SECONDARY], None)
            wanted.append(Wanted(row, is_hint, number in firsts))
            place[self._ids[number]] = number
        looked = self._rows.look_and_insert(wanted)
        self._forget(numbers)
        for row in looked.found:
            if row[ENTRY_ID] not in self._ours:
                self._learn(row)
        for row in looked.inserted:
            self._learn(row)
            self._ours.add(row[ENTRY_ID])
            self._firsts[row[ENTRY_ID]] = self._places[place[row[ID]]]
            self.outcomes[place[row[ID]]] = Outcome("inserted", row)

    def _learn(self, row: Row) -> None:
        entry_id, policy_id = row[ENTRY_ID], row[_POLICY_ID]
        self._known[entry_id] = row
        if row[_PRIMARY] is not None:
            self._by_primary[policy_id, row[_PRIMARY]] = entry_id
        if row[_SECONDARY] is not None:
            self._by_secondary[policy_id, row[_SECONDARY]] = entry_id

    def _forget(self, numbers: Iterable[int]) -> None:
        """What was known of the keys of these, unless it is ours: the look that is to come says what is there."""
        for number in numbers:
            for found, key in zip((self._by_primary, self._by_secondary), _pairs(self._draft(number)), strict=True):
                if found.get(key) not in self._ours:
                    found.pop(key, None)

    def _decide_all(self, numbers: Sequence[int]) -> tuple[list[int], set[int]]:
        """Decide as many as can be; gives those that are left, and which of them are to be inserted."""
        while True:
            left, to_insert, to_lock = self._decide_some(numbers)
            if not to_lock:
                return left, to_insert
            locked = self._rows.lock(to_lock)
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
        keys_in_use: set[tuple[str, int, str]] = set()
        rows_in_use: set[int] = set()
        for number in numbers:
            if self.outcomes[number] is not None:
                continue
            draft = self._draft(number)
            keys = _keys(draft)
            primary, secondary = _pairs(draft)
            decision = decide(draft.policy, self._by_primary.get(primary), self._by_secondary.get(secondary))
            rows = {found for found in (decision.target, decision.split_with) if found is not None}
            waits = not keys_in_use.isdisjoint(keys) or not rows_in_use.isdisjoint(rows)
            if not waits and decision.action != "insert":
                outcome = self._outcome(number, draft, decision)
                if outcome is not None:
                    self.outcomes[number] = outcome
                    continue
                to_lock |= {cast("int", decision.target)}
            elif not waits:
                to_insert.add(number)
            left.append(number)
            keys_in_use.update(keys)
            rows_in_use.update(rows)
        return left, to_insert, to_lock

    def _outcome(self, number: int, draft: Draft, decision: Decision) -> Outcome | None:
        """What becomes of an entry that is there; None when its row has to be locked first."""
        target = cast("int", decision.target)
        row = self._known[target]
        other = None if decision.split_with is None else self._known[decision.split_with][ID]
        if other is not None and draft.strict:
            message = f"its primary key is that of the entry {row[ID]} and its secondary key that of {other}"
            return Outcome("failed", error=Conflict(message))
        first = self._firsts.get(target)
        matched = decision.matched_on
        if decision.action == "skip":
            self._firsts.setdefault(target, self._places[number])
            return Outcome("skipped", row, (), matched, other, first)
        primary, secondary = _pairs(draft)
        try:
            changed, is_stale = changes(
                row,
                draft,
                primary_is_free=primary not in self._by_primary,
                secondary_is_free=secondary not in self._by_secondary,
            )
        except InvalidInput as error:
            return Outcome("failed", error=error)
        if changed:
            if target not in self._ours and not self._rows.is_alone:
                return None
            values = list(row)
            for name, value in changed.items():
                values[POSITION[name]] = value
            values[POSITION["updated_at"]] = self._at
            row = tuple(values)
            self._learn(row)
            self._ours.add(target)
            self._changed.add(target)
        self._firsts.setdefault(target, self._places[number])
        return Outcome("updated", row, tuple(changed), matched, other, first, is_stale)


def _pairs(draft: Draft) -> tuple[tuple[int, str | None], tuple[int, str | None]]:
    policy_id = 0 if draft.policy is None else draft.policy.policy_id
    return (policy_id, draft.primary), (policy_id, draft.secondary)


def _keys(draft: Draft) -> list[tuple[str, int, str]]:
    """Whatever only one entry can have."""
    if draft.policy is None:
        return []
    policy_id = draft.policy.policy_id
    named = (("primary", draft.primary), ("secondary", draft.secondary))
    return [(role, policy_id, key) for role, key in named if key is not None]
