"""What became of an entry that was to be inserted, as callers and answers see it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from onceward.core.canonical import Json
from onceward.errors import Conflict, InvalidInput, NotFound, OncewardError
from onceward.ingest.batch import Outcome
from onceward.ingest.columns import COLUMNS
from onceward.ingest.decide import POSITION, Row

Action: TypeAlias = Literal["inserted", "updated", "skipped", "failed"]

# As the statuses of the hub are called that these errors stand for.
_CODES: tuple[tuple[type[OncewardError], str], ...] = (
    (InvalidInput, "badRequest"),
    (Conflict, "conflict"),
    (NotFound, "notFound"),
)
_METADATA = POSITION["metadata"]


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of one entry. `values` are its columns as they are stored now, None for one that failed.

    `changed` says whether anything was written, `matched_on` by which key it was found, `split_with` which other
    entries have its other key, `duplicate_of_index` which earlier item of the same batch is the same entry, `stale`
    that a newer version is stored. `index` is its place in the batch, None outside of one.
    """

    action: Action
    index: int | None = None
    values: Row | None = None
    changed: bool = False
    matched_on: Literal["primary", "secondary"] | None = None
    split_with: tuple[str, ...] = ()
    duplicate_of_index: int | None = None
    stale: bool = False
    event_id: int | None = None
    error: OncewardError | None = None

    @property
    def row(self) -> dict[str, Json] | None:
        """Every column of the entry by its name, the metadata as an object. Made anew for each call."""
        if self.values is None:
            return None
        row: dict[str, Any] = dict(zip(COLUMNS, self.values, strict=True))
        row["metadata"] = json.loads(self.values[_METADATA])
        return row

    def json(self) -> dict[str, Json]:
        """The flat answer: the row, and what became of it."""
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
            shown["split_with"] = list(self.split_with)
        if self.duplicate_of_index is not None:
            shown["duplicate_of_index"] = self.duplicate_of_index
        if self.stale:
            shown["stale"] = True
        return shown


def inserted_of(place: int, outcome: Outcome, event_id: int | None) -> Inserted:
    """The result of the item at this place."""
    return Inserted(
        outcome.action,
        place,
        outcome.row,
        outcome.action == "inserted" or bool(outcome.changed),
        outcome.matched_on,
        () if outcome.split_with is None else (outcome.split_with,),
        outcome.duplicate_of,
        outcome.is_stale,
        event_id,
        outcome.error,
    )


def alone(result: Inserted) -> Inserted:
    """The result of an entry that was no part of a batch; raises its error."""
    if result.error is not None:
        raise result.error
    return replace(result, index=None)


def error_json(error: OncewardError) -> dict[str, Json]:
    """An item's error, with the parts of a problem answer that fit into a list."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.code)
    shown: dict[str, Json] = {"code": code, "detail": str(error)}
    if isinstance(error, InvalidInput):
        shown["errors"] = [{"field": field, "message": why} for field, why in error.fields]
    return shown
