"""Result of inserting one entry, as callers and responses see it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from onceward.core.canonical import Json
from onceward.errors import Conflict, InvalidInput, NotFound, OncewardError
from onceward.hub.ingest.entries.batch import EntryOutcome
from onceward.hub.ingest.entries.columns import COLUMNS
from onceward.hub.ingest.entries.decision import POSITION

Action: TypeAlias = Literal["inserted", "updated", "skipped", "failed"]

# The codes of the hub's problems for these errors.
_CODES: tuple[tuple[type[OncewardError], str], ...] = (
    (InvalidInput, "badRequest"),
    (Conflict, "conflict"),
    (NotFound, "notFound"),
)
_METADATA = POSITION["metadata"]


@dataclass(frozen=True, slots=True)
class Inserted:
    """Result for one entry: its outcome, its index in the batch (None outside a batch), and its event id, if any."""

    outcome: EntryOutcome
    index: int | None = None
    event_id: int | None = None

    @property
    def action(self) -> Action:
        return self.outcome.action

    @property
    def changed(self) -> bool:
        """True if anything was written."""
        return self.outcome.action == "inserted" or bool(self.outcome.changed)

    @property
    def matched_on(self) -> Literal["primary", "secondary"] | None:
        """The key by which an existing entry was found."""
        return self.outcome.matched_on

    @property
    def split_with(self) -> list[str]:
        """The ids of other entries that have its secondary key."""
        return [] if self.outcome.split_with is None else [self.outcome.split_with]

    @property
    def duplicate_of_index(self) -> int | None:
        """The index of the first item in the batch that concerned the same entry, if not this one."""
        return self.outcome.duplicate_of

    @property
    def stale(self) -> bool:
        """True if the stored version is newer, so that nothing was changed."""
        return self.outcome.is_stale

    @property
    def error(self) -> OncewardError | None:
        return self.outcome.error

    @property
    def row(self) -> dict[str, Json] | None:
        """Every column of the entry by name, the metadata as an object. A new dictionary for each access."""
        values = self.outcome.row
        if values is None:
            return None
        row: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
        row["metadata"] = json.loads(values[_METADATA])
        return row

    def json(self) -> dict[str, Json]:
        """Return the flat JSON of a response: the row, the action and its details."""
        shown: dict[str, Json] = {} if self.index is None else {"index": self.index}
        if self.error is not None:
            return {**shown, "action": self.action, "error": error_json(self.error)}
        shown |= self.row or {}
        shown |= {
            "action": self.action,
            "changed": self.changed,
            "matched_on": self.matched_on,
            "event_id": self.event_id,
        }
        if self.split_with:
            shown["split_with"] = [*self.split_with]
        if self.duplicate_of_index is not None:
            shown["duplicate_of_index"] = self.duplicate_of_index
        if self.stale:
            shown["stale"] = True
        return shown


def alone(result: Inserted) -> Inserted:
    """Return the result of a single insert, without a batch index; raise its error, if any."""
    if result.error is not None:
        raise result.error
    return replace(result, index=None)


def error_json(error: OncewardError) -> dict[str, Json]:
    """Return an item's error as JSON: code, detail and, for invalid input, the errors of its fields."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.code)
    shown: dict[str, Json] = {"code": code, "detail": str(error)}
    if isinstance(error, InvalidInput):
        shown["errors"] = [{"field": field, "message": why} for field, why in error.fields]
    return shown
