"""Result of inserting one entry, as callers and responses see it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

from onceward.core.canonical import Json
from onceward.core.json_text import quoted, written
from onceward.errors import Conflict, InvalidInput, NotFound, OncewardError
from onceward.hub.ingest.entries.batch import EntryOutcome
from onceward.hub.ingest.entries.columns import COLUMNS
from onceward.hub.ingest.entries.decision import POSITION, Row

Action: TypeAlias = Literal["inserted", "updated", "skipped", "failed"]

# The codes of the hub's problems for these errors.
_CODES: tuple[tuple[type[OncewardError], str], ...] = (
    (InvalidInput, "badRequest"),
    (Conflict, "conflict"),
    (NotFound, "notFound"),
)
_METADATA = POSITION["metadata"]
_ROW = ",".join(f'"{name}":%s' for name in COLUMNS)


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
        shown: dict[str, Json] = json.loads(self.text())
        return shown

    def text(self) -> str:
        """Return the same as JSON text. The metadata is inserted as it was stored."""
        index = "" if self.index is None else f'"index":{self.index},'
        outcome = self.outcome
        if outcome.error is not None:
            return f'{{{index}"action":"failed","error":{written(error_json(outcome.error))}}}'
        row = cast("Row", outcome.row)
        cells = ["null" if value is None else quoted(value) if type(value) is str else str(value) for value in row]
        cells[_METADATA] = row[_METADATA]
        more: dict[str, Json] = {
            "action": outcome.action,
            "changed": self.changed,
            "matched_on": outcome.matched_on,
            "event_id": self.event_id,
        }
        if outcome.split_with is not None:
            more["split_with"] = [outcome.split_with]
        if outcome.duplicate_of is not None:
            more["duplicate_of_index"] = outcome.duplicate_of
        if outcome.is_stale:
            more["stale"] = True
        return f"{{{index}{_ROW % tuple(cells)},{written(more)[1:]}"


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
