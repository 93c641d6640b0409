"""What normalization gives and an insert takes: the columns of an entry by name, with its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from onceward.core.canonical import Json

Payload: TypeAlias = dict[str, Json]


def known(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Drop the fields that have no value: null, an empty text or an empty list.

    An update does not touch a column that is absent from the payload. So a form that says less than another one of the
    same message erases nothing that the other one said, and nothing that somebody added later.
    """
    return {name: value for name, value in fields.items() if value not in (None, "", [])}
