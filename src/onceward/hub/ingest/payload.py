"""Payload: the columns of an entry by name, with its keys. Normalizers return it, and inserts accept it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from onceward.core.canonical import Json

Payload: TypeAlias = dict[str, Json]


def known(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Drop the fields that have no value: null, an empty string or an empty list.

    An update does not change a column that is absent from the payload. So when one message arrives in two forms, the
    form with fewer fields erases neither the values of the other form nor values that were added later.
    """
    return {name: value for name, value in fields.items() if value not in (None, "", [])}
