"""A tool's result as JSON, for the model and for the ledger."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import math
import uuid
from typing import Any, cast

from onceward.core.canonical import Json
from onceward.core.scalar import Unkeepable
from onceward.core.value import NESTING_MAX


def to_json(value: object, depth: int = 0) -> Json:
    """Convert a value to JSON: dataclasses and pydantic models to objects, dates and ids to text.

    Raises `Unkeepable` for a value without a JSON form.
    """
    if depth > NESTING_MAX:
        raise Unkeepable(f"nested deeper than {NESTING_MAX} levels")
    if isinstance(value, enum.Enum):
        return to_json(value.value, depth)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        # A lone surrogate cannot be encoded.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_name(name): to_json(item, depth + 1) for name, item in value.items()}
    return _object(value, depth)


def _object(value: object, depth: int) -> Json:
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (one.name for one in dataclasses.fields(value))
        return {name: to_json(getattr(value, name), depth + 1) for name in names}
    dump: Any = getattr(type(value), "model_dump", None)
    if callable(dump):
        return cast("Json", dump(value, mode="json"))
    raise Unkeepable(f"a value of type {type(value).__name__} has no JSON form")


def _name(name: object) -> str:
    return cast("str", to_json(name)) if isinstance(name, str) else str(name)
