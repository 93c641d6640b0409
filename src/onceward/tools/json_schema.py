"""The JSON Schema of a tool's arguments: derived from the function, shown to the model, checked before a call runs.

It covers only the part of JSON Schema that function signatures need. Parameters without a type hint are not checked.
"""

from __future__ import annotations

import enum
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, cast

from onceward.core.canonical import Json
from onceward.errors import InvalidOption

Schema: TypeAlias = dict[str, Json]

_PLAIN: dict[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    None: "null",
    type(None): "null",
    list: "array",
    dict: "object",
}
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_WORDS: dict[type, str] = {
    type(None): "null",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
}


def schema_of(function: Callable[..., Any], hidden: Collection[str] = ()) -> Schema:
    """Return the schema of a function's parameters, except those in `hidden`. Arguments are passed by name."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        hints = {}
    properties: dict[str, Json] = {}
    required: list[Json] = []
    more = False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            more = True
            continue
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY}:
            raise InvalidOption(
                f"the arguments of a tool are passed by name, but the parameter {name!r} of {function!r} is positional"
            )
        if name in hidden:
            continue
        found = _schema(hints.get(name, Any))
        if parameter.default is parameter.empty:
            required.append(name)
        elif _is_json(parameter.default):
            found = {**found, "default": parameter.default}
        properties[name] = found
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": more}


def problem(schema: Mapping[str, Json], value: object, where: str = "") -> str | None:
    """Describe the first error in a value; None if it is valid. Unknown keywords are ignored."""
    if "anyOf" in schema:
        options = cast("list[Schema]", schema["anyOf"])
        found = [problem(option, value, where) for option in options]
        if None in found:
            return None
        # Report an alternative other than null.
        problems = (one for one, option in zip(found, options, strict=True) if option != {"type": "null"})
        return next(problems, found[0])
    name = where or "the arguments"
    if "enum" in schema and value not in cast("list[Json]", schema["enum"]):
        return f"{name} must be one of {', '.join(map(repr, cast('list[Json]', schema['enum'])))}"
    kinds = schema.get("type", [])
    wanted = [kinds] if isinstance(kinds, str) else cast("list[str]", kinds)
    if wanted and not any(_is_a(kind, value) for kind in wanted):
        return f"{name} must be of type {' or '.join(wanted)}, got {_shown(value)}"
    if isinstance(value, dict):
        return _object_problem(schema, value, where)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        items = cast("Schema", schema["items"])
        return next((bad for at, item in enumerate(value) if (bad := problem(items, item, f"{where}[{at}]"))), None)
    return None


def _object_problem(schema: Mapping[str, Json], value: dict[str, object], where: str) -> str | None:
    properties = cast("dict[str, Schema]", schema.get("properties", {}))
    for name in cast("list[str]", schema.get("required", [])):
        if name not in value:
            return f"{_path(where, name)} is missing"
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        known = properties.get(name)
        if known is None and others is False:
            return f"unknown argument {_path(where, name)}"
        rule = known if known is not None else others
        if isinstance(rule, dict) and (bad := problem(rule, item, _path(where, name))):
            return bad
    return None


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is_a(kind: str, value: object) -> bool:
    if kind in {"integer", "number"}:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return isinstance(value, int) or (value.is_integer() if kind == "integer" else math.isfinite(value))
    return isinstance(value, _KINDS.get(kind, (object,)))


def _shown(value: object) -> str:
    return _WORDS.get(type(value), f"a {type(value).__name__}")


def _schema(hint: Any) -> Schema:
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        notes = [note for note in inside[1:] if isinstance(note, str)]
        return {**_schema(inside[0]), **({"description": notes[0]} if notes else {})}
    if origin in {typing.Union, types.UnionType}:
        return {"anyOf": [_schema(one) for one in inside]}
    if origin is typing.Literal:
        return {"enum": list(inside)}
    if origin is list:
        return {"type": "array", "items": _schema(inside[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(inside[1])}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return {"enum": [str(one) for one in hint]}
    return {}


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
