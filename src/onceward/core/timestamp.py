"""Timestamps as text: UTC with six fractional digits and a fixed width, so that text order is time order."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@functools.lru_cache(maxsize=256)
def to_text(microseconds: int) -> str:
    """Format microseconds since 1970: `1` becomes `1970-01-01T00:00:00.000001Z`."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    return f"{_second(seconds)}.{fraction:06d}Z"


def from_text(text: str) -> int:
    since = datetime.fromisoformat(text) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@functools.lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """Format whole seconds. Cached, because most timestamps of a busy process fall into a few seconds."""
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
