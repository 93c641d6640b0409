"""Caller fields: the metadata and times that a caller sends with a message. They override those of the message."""

from __future__ import annotations

import math

from onceward.core.canonical import Json
from onceward.core.json_text import compact, refused
from onceward.hub.ingest.normalize.dates import source_time
from onceward.hub.ingest.normalize.fields import Fields, storable

# The nesting limit of JSON bodies in the hub.
_NESTING_MAX = 64


def caller_metadata(fields: Fields) -> dict[str, Json]:
    """Return the object `metadata`, after checking that every database can store it; empty if absent."""
    within = fields.within("metadata")
    metadata = dict(within.sent)
    if not metadata:
        return metadata
    # First check the depth, level by level: deeper objects would exceed the recursion limit of later checks.
    level: list[Json] = [metadata]
    for _ in range(_NESTING_MAX):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            break
    else:
        raise refused("metadata", f"is nested deeper than {_NESTING_MAX} levels")
    compact(metadata)
    if within.has("source_time"):
        # Versions are compared by this text, so it must have the one form that sorts by time.
        metadata["source_time"] = caller_time(within, "source_time")
    return metadata


def caller_time(fields: Fields, name: str) -> str | None:
    """Parse a time from Unix seconds, an RFC 5322 date or ISO 8601; return it in the form of stored rows."""
    value = fields.sent.get(name)
    if value is None:
        return None
    time = source_time(value) if isinstance(value, str | int) else None
    if time is None:
        raise refused(fields.place(name), "must be a time: Unix seconds, or a string such as 2026-11-16T03:26:00Z")
    return time


def _inside(value: Json) -> list[Json]:
    if isinstance(value, str):
        storable("metadata", value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise refused("metadata", "must not contain NaN or infinity")
    elif isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []
