"""What a caller says himself beside a message: metadata that is merged over the message's, and times."""

from __future__ import annotations

import math

from onceward.core.canonical import Json
from onceward.core.text import compact, refused
from onceward.ingest.date import source_time
from onceward.ingest.fields import Fields, storable

# As deep as the hub reads JSON.
_NESTING_MAX = 64


def metadata_said(fields: Fields) -> dict[str, Json]:
    """The object `metadata`, checked so far that every database takes it; empty if there is none."""
    within = fields.within("metadata")
    metadata = dict(within.sent)
    if not metadata:
        return metadata
    # Level by level and first of all: only what is not nested too deeply can be looked through by calling again.
    level: list[Json] = [metadata]
    for _ in range(_NESTING_MAX):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            break
    else:
        raise refused("metadata", f"is nested deeper than {_NESTING_MAX} levels")
    compact(metadata)
    if within.has("source_time"):
        # Versions are compared by it, so it has the one form in which that works.
        metadata["source_time"] = time_said(within, "source_time")
    return metadata


def time_said(fields: Fields, name: str) -> str | None:
    """A time as rows have it, of Unix seconds or of a text as in mail or ISO 8601."""
    value = fields.sent.get(name)
    if value is None:
        return None
    time = source_time(value) if isinstance(value, str | int) else None
    if time is None:
        raise refused(fields.place(name), "must be a time: Unix seconds, or a text such as 2026-11-16T03:26:00Z")
    return time


def _inside(value: Json) -> list[Json]:
    if isinstance(value, str):
        storable("metadata", value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise refused("metadata", "must not have numbers that are none")
    elif isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []
