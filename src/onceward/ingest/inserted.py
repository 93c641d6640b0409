"""What became of an entry that was to be inserted, as callers and answers see it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from onceward.core.canonical import Json
from onceward.errors import Conflict, InvalidInput, NotFound, OncewardError
from onceward.ingest.batch import Outcome
from onceward.ingest.columns import COLUMNS
from onceward.ingest.decide import POSITION

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
    """What became of one entry: an outcome, its place in the batch (None outside of one), and its event, if any."""

    outcome: Outcome
    index: int | None = None
    event_id: int | None = None

    @property
    def action(self) -> Action:
        return self.outcome.action

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return self.outcome.action == "inserted" or bool(self.outcome.changed)

    @property
    def matched_on(self) -> Literal["primary", "secondary"] | None:
        """By which key the entry was found that is there."""
        return self.outcome.matched_on

    @property
    def split_with(self) -> list[str]:
        """The ids of other entries that have its other key."""
        return [] if self.outcome.split_with is None else [self.outcome.split_with]

    @property
    def duplicate_of_index(self) -> int | None:
        """Which earlier item of the same batch was about the same entry."""
        return self.outcome.duplicate_of

    @property
    def stale(self) -> bool:
        """Whether a newer version is stored, so that nothing was changed."""
        return self.outcome.is_stale

    @property
    def error(self) -> OncewardError | None:
        return self.outcome.error

    @property
    def row(self) -> dict[str, Json] | None:
        """Every column of the entry by its name, the metadata as an object. Made anew for each call."""
        values = self.outcome.row
        if values is None:
            return None
        row: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
        row["metadata"] = json.loads(values[_METADATA])
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
            shown["split_with"] = [*self.split_with]
        if self.duplicate_of_index is not None:
            shown["duplicate_of_index"] = self.duplicate_of_index
        if self.stale:
            shown["stale"] = True
        return shown


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
