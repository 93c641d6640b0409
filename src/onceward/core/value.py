"""How a result is kept: JSON with tags for the types JSON lacks. No pickle: reading a value never runs stored code.

    5, "x", None, [1], {"a": 1}     as they are
    Decimal("1.10")                 {"$": "decimal", "v": "1.10"}
    Point(1, 2), a dataclass        {"$": "dataclass", "c": "shop.geometry:Point", "v": {"x": 1, "y": 2}}

A class is rebuilt only when it is the declared return type or already imported under its stored name; it is never
imported because a stored value asks for it.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import json
import math
import sys
import uuid
from collections.abc import Callable
from typing import Protocol, TypeGuard, cast

from onceward.core.canonical import INTEGER_MAX, Json
from onceward.errors import OutcomeNotKept

TAG = "$"
# Deeper than any real result, far below the interpreter's own recursion limit.
NESTING_MAX = 64


class Unkeepable(ValueError):
    """The value has a part that JSON and our tags cannot express."""


class _Model(Protocol):
    """What we use of a pydantic model, so that pydantic need not be installed."""

    def model_dump(self) -> dict[str, object]: ...


def encode(value: object) -> bytes:
    """The bytes to keep, or `Unkeepable`."""
    return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def decode(body: bytes, returns: type | None = None) -> object:
    """The value that `encode` was given. `returns` is the declared return type, used to rebuild a renamed class."""

    def untag(found: dict[str, Json]) -> object:
        return from_tag(found, returns) if TAG in found else found

    return json.loads(body, object_hook=untag)


def to_json(value: object, depth: int = 0, *, exact_numbers: bool = False) -> Json:
    """The tagged JSON form of a value. With `exact_numbers`, integers RFC 8785 cannot carry become tagged text."""
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return cast("Json", value)
    if kind is int:
        whole = cast("int", value)
        return _tag("int", str(whole)) if exact_numbers and abs(whole) > INTEGER_MAX else whole
    if kind is float:
        number = cast("float", value)
        return number if math.isfinite(number) else _tag("float", repr(number))
    if depth >= NESTING_MAX:
        raise Unkeepable(f"nested deeper than {NESTING_MAX} levels")

    def inside(item: object) -> Json:
        return to_json(item, depth + 1, exact_numbers=exact_numbers)

    if kind is list:
        return [inside(item) for item in cast("list[object]", value)]
    if kind is dict:
        return _dict_to_json(cast("dict[object, object]", value), inside)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        name, to_text, _ = simple
        return _tag(name, to_text(value))
    if kind in _COLLECTIONS:
        return _tag(_COLLECTIONS[kind], _collection_to_json(value, inside))
    return _object_to_json(value, inside)


def _dict_to_json(value: dict[object, object], inside: Callable[[object], Json]) -> Json:
    if all(type(name) is str for name in value) and TAG not in value:
        return {cast("str", name): inside(item) for name, item in value.items()}
    return _tag("dict", [[inside(name), inside(item)] for name, item in value.items()])


def _collection_to_json(value: object, inside: Callable[[object], Json]) -> Json:
    items = [inside(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, set | frozenset):
        items.sort(key=lambda item: json.dumps(item, sort_keys=True))
    return items


def _object_to_json(value: object, inside: Callable[[object], Json]) -> Json:
    kind = type(value)
    name = _class_name(kind)
    if isinstance(value, enum.Enum):
        return {TAG: "enum", "c": name, "v": value.name if value.name is not None else inside(value.value)}
    if dataclasses.is_dataclass(value):
        fields = {field.name: inside(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {TAG: "dataclass", "c": name, "v": fields}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {TAG: "namedtuple", "c": name, "v": [inside(item) for item in value]}
    if _is_model(kind):
        return {TAG: "model", "c": name, "v": inside(cast("_Model", value).model_dump())}
    raise Unkeepable(f"{name} has no form that can be kept")


def from_tag(found: dict[str, Json], returns: type | None) -> object:
    """Rebuild one tagged value whose parts are rebuilt already."""
    name, value = cast("str", found[TAG]), found["v"]
    simple = _FROM_TEXT.get(name)
    if simple is not None:
        return simple(cast("str", value))
    parts = cast("list[list[object]]", value)
    match name:
        case "dict":
            return {pair[0]: pair[1] for pair in parts}
        case "tuple":
            return tuple(parts)
        case "set":
            return set(cast("list[object]", value))
        case "frozenset":
            return frozenset(cast("list[object]", value))
        case "enum" | "dataclass" | "namedtuple" | "model":
            return _rebuild(name, _find_class(cast("str", found["c"]), name, returns), value)
        case _:
            raise OutcomeNotKept(f"the kept result has a part of an unknown kind {name!r}; a newer Onceward wrote it")


def _rebuild(shape: str, kind: type, value: Json) -> object:
    try:
        match shape:
            case "enum":
                return kind[value] if isinstance(value, str) else kind(value)  # type: ignore[index]  # an Enum class
            case "dataclass":
                return _rebuild_dataclass(kind, cast("dict[str, object]", value))
            case "namedtuple":
                return kind(*cast("list[object]", value))
            case _:
                return kind.model_validate(value)  # type: ignore[attr-defined]  # a pydantic class, see _is_model
    except (TypeError, ValueError, LookupError) as error:
        raise OutcomeNotKept(f"the kept result does not fit {_class_name(kind)} any more: {error}") from error


def _rebuild_dataclass(kind: type, values: dict[str, object]) -> object:
    fields = dataclasses.fields(kind)
    unknown = values.keys() - {field.name for field in fields}
    if unknown:
        raise ValueError(f"no field {min(unknown)!r}")
    made = kind(**{field.name: values[field.name] for field in fields if field.init and field.name in values})
    for field in fields:
        if not field.init and field.name in values:
            object.__setattr__(made, field.name, values[field.name])
    return made


def _find_class(name: str, shape: str, returns: type | None) -> type:
    if returns is not None and _fits(returns, shape) and _class_name(returns) == name:
        return returns
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and _fits(found, shape):
        return found
    if returns is not None and _fits(returns, shape):
        return returns
    raise OutcomeNotKept(
        f"the kept result is a {name}, which is not imported here; import it, or declare it as the return type"
    )


def _fits(kind: type, shape: str) -> bool:
    match shape:
        case "enum":
            return issubclass(kind, enum.Enum)
        case "dataclass":
            return dataclasses.is_dataclass(kind)
        case "namedtuple":
            return issubclass(kind, tuple) and hasattr(kind, "_fields")
        case _:
            return _is_model(kind)


def _is_model(kind: type) -> TypeGuard[type]:
    return hasattr(kind, "model_dump") and hasattr(kind, "model_validate") and hasattr(kind, "model_fields")


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _tag(name: str, value: Json) -> Json:
    return {TAG: name, "v": value}


def _bytes_text(value: object) -> str:
    return base64.b64encode(cast("bytes", value)).decode("ascii")


def _iso_text(value: object) -> str:
    return cast("datetime.datetime", value).isoformat()


def _datetime_text(value: object) -> str:
    moment = cast("datetime.datetime", value)
    if moment.tzinfo is not None and not isinstance(moment.tzinfo, datetime.timezone):
        # A named zone becomes its offset at that moment: equal as a point in time, which is what == compares.
        moment = moment.astimezone(datetime.timezone(moment.utcoffset() or datetime.timedelta()))
    return f"{moment.fold}{moment.isoformat()}"


def _datetime_from_text(text: str) -> object:
    return datetime.datetime.fromisoformat(text[1:]).replace(fold=int(text[0]))


def _timedelta_text(value: object) -> str:
    span = cast("datetime.timedelta", value)
    return f"{span.days}:{span.seconds}:{span.microseconds}"


def _timedelta_from_text(text: str) -> object:
    days, seconds, microseconds = map(int, text.split(":"))
    return datetime.timedelta(days, seconds, microseconds)


_SIMPLE: dict[type, tuple[str, Callable[[object], str], Callable[[str], object]]] = {
    bytes: ("bytes", _bytes_text, base64.b64decode),
    bytearray: ("bytearray", _bytes_text, lambda text: bytearray(base64.b64decode(text))),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    datetime.datetime: ("datetime", _datetime_text, _datetime_from_text),
    datetime.date: ("date", _iso_text, datetime.date.fromisoformat),
    datetime.time: ("time", _iso_text, datetime.time.fromisoformat),
    datetime.timedelta: ("timedelta", _timedelta_text, _timedelta_from_text),
    complex: ("complex", repr, complex),
}
_COLLECTIONS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_FROM_TEXT: dict[str, Callable[[str], object]] = {name: back for name, _, back in _SIMPLE.values()}
_FROM_TEXT |= {"int": int, "float": float}
