"""A tool's result as JSON: what the model reads, and what is kept."""

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


def plain(value: object, depth: int = 0) -> Json:
    """The JSON that says the same: dataclasses and pydantic models as objects, dates and ids as text. `Unkeepable` for
    what has none.
    """
    if depth > NESTING_MAX:
        raise Unkeepable(f"nested deeper than {NESTING_MAX} levels")
    if isinstance(value, enum.Enum):
        return plain(value.value, depth)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        # Half a character (a lone surrogate) cannot be sent to anybody.
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_name(name): plain(item, depth + 1) for name, item in value.items()}
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
        return {name: plain(getattr(value, name), depth + 1) for name in names}
    dump: Any = getattr(type(value), "model_dump", None)
    if callable(dump):
        return cast("Json", dump(value, mode="json"))
    raise Unkeepable(f"a {type(value).__name__} has no JSON form")


def _name(name: object) -> str:
    return cast("str", plain(name)) if isinstance(name, str) else str(name)
