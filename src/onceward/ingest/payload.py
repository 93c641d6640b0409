"""What normalization gives and an insert takes: the columns of an entry by name, with its keys."""

from __future__ import annotations

from typing import TypeAlias

from onceward.core.canonical import Json

Payload: TypeAlias = dict[str, Json]
