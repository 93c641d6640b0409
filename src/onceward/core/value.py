"""The stored form of results: JSON, with tags for the types that JSON lacks.

    5, "x", None, [1], {"a": 1}     as they are
    Decimal("1.10")                 {"$": "decimal", "v": "1.10"}
    Point(1, 2), a dataclass        {"$": "dataclass", "c": "shop.geometry:Point", "v": {"x": 1, "y": 2}}

Pickle is not used: reading a value never runs stored code. A class is rebuilt only if it is the declared return type or
is already imported under its stored name. It is never imported because a stored value names it. Fields get their stored
values, even where the constructor would change them. State that a class keeps outside of its fields is not stored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import math
import sys
from collections.abc import Callable
from typing import Any, Protocol, cast

from onceward.core.canonical import Json, plain_size
from onceward.core.json_text import written
from onceward.core.moved import RENAMED, current_name, first_class_name
from onceward.core.scalar import FROM_TEXT, TO_TEXT, Unkeepable, hidden_text, is_text
from onceward.errors import OutcomeNotKept

TAG = "$"
# Deeper than any real result, and far below the interpreter's recursion limit.
NESTING_MAX = 64
# Larger integers are stored in hexadecimal: Python limits the decimal digits that it converts, and the limit may be as
# low as 640.
DECIMAL_BITS_MAX = 2048
# The largest integers that RFC 8785 can carry (2^53 - 1).
CANONICAL_BITS_MAX = 53


class _Model(Protocol):
    """The attributes of a pydantic model that are used here, so that pydantic need not be installed."""

    model_fields_set: set[str]
    model_extra: dict[str, object] | None
    __pydantic_private__: dict[str, object] | None


# Created once: `json.dumps` with options creates an encoder for each call.
_write = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_TAG_BYTES = b'"$"'


class _UnknownClass:
    """A placeholder for a tagged value of an unknown class, until it is clear whether it is the whole result."""

    def __init__(self, found: dict[str, Json]) -> None:
        self.found = found


class _SizeBudget:
    """The remaining size of the output, and the parts that are already converted.

    The size is limited during the conversion: a part that a value contains twice is written out twice, so a small value
    can have an enormous form.
    """

    __slots__ = ("_size_max", "done", "left")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self.left = size_max
        # By `id`, together with the part itself: as long as it is referenced, no other object gets its id.
        self.done: dict[int, tuple[object, Json, int]] = {}

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise Unkeepable(f"larger than {self._size_max} bytes")


def encode(value: object, size_max: int = sys.maxsize) -> bytes:
    """Return the bytes to store. Raise `Unkeepable` if the value has no stored form or is larger than `size_max`.

    A value that is too large is detected before all of it is written out.
    """
    size = plain_size(value)
    if size is None:
        return _write(to_json(value, size_max)).encode("ascii")
    if size > size_max:
        raise Unkeepable(f"larger than {size_max} bytes")
    body = written(value).encode("ascii")
    return body if _TAG_BYTES not in body else _write(to_json(value)).encode("ascii")


def decode(body: bytes, returns: type | None = None) -> object:
    """Return the value that `encode` was given. `returns` is the declared return type, used for a renamed class.

    Raises:
        OutcomeNotKept: The bytes are not a stored result, or a class in it is not imported or has changed.
    """
    try:
        return _decode(body, returns)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise OutcomeNotKept(
            "the stored result cannot be read: its bytes are damaged, or were changed in the store; the effect will not"
            " run again"
        ) from error


def _decode(body: bytes, returns: type | None) -> object:
    if _TAG_BYTES not in body:
        return json.loads(body)
    unknowns: list[_UnknownClass] = []

    def untag(found: dict[str, Json]) -> object:
        if TAG not in found:
            return found
        made = _from_tag(found, returns)
        if isinstance(made, _UnknownClass):
            unknowns.append(made)
        return made

    value = json.loads(body, object_hook=untag)
    if not unknowns:
        return value
    # The declared type describes the whole result. A part that merely has the same shape must not become one.
    shape, name = cast("str", unknowns[0].found[TAG]), unknowns[0].found["c"]
    if value is unknowns[0] and returns is not None and _fits(returns, shape):
        return _rebuild(shape, returns, unknowns[0].found)
    raise OutcomeNotKept(
        f"the stored result contains a {name}, which is not imported here; import it, or declare it as the return type"
    )


def to_json(value: object, size_max: int = sys.maxsize, *, canonical: bool = False) -> Json:
    """Return the tagged JSON form of a value. Raise `Unkeepable` if it has none, or one larger than `size_max`.

    With `canonical`, equal values have the same form, and RFC 8785 can represent it.
    """
    return _to_json(value, _SizeBudget(size_max), canonical=canonical)


def _to_json(value: object, budget: _SizeBudget, depth: int = 0, *, canonical: bool = False) -> Json:
    kind = type(value)
    budget.take(1)
    if value is None or kind is bool:
        return cast("Json", value)
    if kind is str:
        text = cast("str", value)
        budget.take(len(text))
        return text if is_text(text) else _tag("text", hidden_text(text))
    if kind is int:
        whole = cast("int", value)
        bits_max = CANONICAL_BITS_MAX if canonical else DECIMAL_BITS_MAX
        return whole if whole.bit_length() <= bits_max else _tag("int", hex(whole))
    if kind is float:
        number = cast("float", value)
        return number if math.isfinite(number) else _tag("float", repr(number))
    if depth >= NESTING_MAX:
        raise Unkeepable(f"nested deeper than {NESTING_MAX} levels")
    done = budget.done.get(id(value))
    if done is not None:
        budget.take(done[2])
        return done[1]
    left = budget.left
    form = _form_of(value, budget, depth, canonical=canonical)
    budget.done[id(value)] = value, form, left - budget.left
    return form


def _form_of(value: object, budget: _SizeBudget, depth: int, *, canonical: bool) -> Json:
    """Convert a value that has parts or is stored as a text."""
    kind = type(value)

    def inside(item: object) -> Json:
        return _to_json(item, budget, depth + 1, canonical=canonical)

    if kind is list:
        return [inside(item) for item in cast("list[object]", value)]
    if kind is dict:
        return _dict_to_json(cast("dict[object, object]", value), inside, canonical=canonical)
    scalar = TO_TEXT.get(kind)
    if scalar is not None:
        name, to_text = scalar
        text = to_text(value)
        budget.take(len(text))
        return _tag(name, text)
    if kind in _COLLECTIONS:
        return _tag(_COLLECTIONS[kind], _collection_to_json(value, inside))
    return _object_to_json(value, inside)


def _dict_to_json(value: dict[object, object], inside: Callable[[object], Json], *, canonical: bool) -> Json:
    if TAG not in value and all(type(name) is str and is_text(name) for name in value):
        return {cast("str", inside(name)): inside(item) for name, item in value.items()}
    pairs: list[Json] = [[inside(name), inside(item)] for name, item in value.items()]
    return _tag("dict", sorted(pairs, key=_sort_text) if canonical else pairs)


def _collection_to_json(value: object, inside: Callable[[object], Json]) -> Json:
    items = [inside(item) for item in cast("tuple[object, ...]", value)]
    return sorted(items, key=_sort_text) if isinstance(value, set | frozenset) else items


def _sort_text(item: Json) -> str:
    return json.dumps(item, sort_keys=True)


def _object_to_json(value: object, inside: Callable[[object], Json]) -> Json:
    kind = type(value)
    name = _class_name(kind)
    if isinstance(value, enum.Enum):
        # Flags can be combined, and a combination has no name.
        return {TAG: "enum", "c": name, "v": inside(value.value) if isinstance(value, enum.Flag) else value.name}
    if dataclasses.is_dataclass(kind):
        return {TAG: "dataclass", "c": name, "v": _fields_to_json(value, _field_names(kind), inside)}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return {TAG: "namedtuple", "c": name, "v": [inside(item) for item in value]}
    if _is_model(kind):
        model = cast("_Model", value)
        return {
            TAG: "model",
            "c": name,
            "v": _fields_to_json(value, _field_names(kind), inside),
            "set": cast("list[Json]", sorted(model.model_fields_set)),
            "extra": inside(model.model_extra),
            **_private_to_json(model, inside),
        }
    raise Unkeepable(f"{name} has no stored form")


def _private_to_json(model: _Model, inside: Callable[[object], Json]) -> dict[str, Json]:
    """Convert the private attributes that have a stored form. Rebuilding the model creates the others again."""
    stored: dict[str, Json] = {}
    for name, value in (model.__pydantic_private__ or {}).items():
        with contextlib.suppress(Unkeepable):
            stored[name] = inside(value)
    return {"private": stored} if stored else {}


def _fields_to_json(value: object, names: list[str], inside: Callable[[object], Json]) -> Json:
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise Unkeepable(f"{_class_name(type(value))} has no value for its field {missing[0]!r}")
    return {name: inside(getattr(value, name)) for name in names}


def _from_tag(found: dict[str, Json], returns: type | None) -> object:
    """Rebuild one tagged value whose parts are already rebuilt."""
    name, value = cast("str", found[TAG]), found["v"]
    scalar = FROM_TEXT.get(name)
    if scalar is not None:
        return scalar(cast("str", value))
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
            kind = _find_class(cast("str", found["c"]), name, returns)
            return _UnknownClass(found) if kind is None else _rebuild(name, kind, found)
        case _:
            raise OutcomeNotKept(f"the stored result has a part of unknown kind {name!r}; a newer Onceward wrote it")


def _rebuild(shape: str, kind: type, found: dict[str, Json]) -> object:
    value = found["v"]
    try:
        match shape:
            case "enum":
                return kind[value] if isinstance(value, str) else kind(value)  # type: ignore[index]  # an Enum class
            case "dataclass":
                return _rebuild_dataclass(kind, cast("dict[str, object]", value))
            case "namedtuple":
                return kind._make(cast("list[object]", value))  # type: ignore[attr-defined]  # of a named tuple
            case _:
                return _rebuild_model(kind, found)
    except Exception as error:  # The class's own code runs here and may raise anything.
        raise OutcomeNotKept(f"the stored result no longer fits {_class_name(kind)}: {error}") from error


def _rebuild_dataclass(kind: type, values: dict[str, object]) -> object:
    _check_names(values, _field_names(kind))
    fields = dataclasses.fields(kind)
    if _takes_its_fields(kind):
        made = kind(**{field.name: values[field.name] for field in fields if field.init and field.name in values})
    else:
        made = object.__new__(kind)
        for field in fields:
            if field.name not in values:
                object.__setattr__(made, field.name, _default(field))
    # Set each field again: `__post_init__` changed the values when the object was first made, and has now changed them
    # a second time.
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _takes_its_fields(kind: Any) -> bool:
    """Return whether the constructor takes exactly the fields, by name."""
    own = kind.__dataclass_params__.init and not hasattr(kind, "__pydantic_validator__")
    return own and len(kind.__dataclass_fields__) == len(dataclasses.fields(kind))  # otherwise it has InitVars


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if field.default is dataclasses.MISSING:
        raise ValueError(f"no value for the field {field.name!r}")
    return field.default


def _rebuild_model(kind: Any, found: dict[str, Json]) -> object:
    """Rebuild a pydantic model without validation.

    The model was validated when it was first made, and its validators may reject their own output. `model_construct`
    does not work either: it takes the value of one field for another whose alias is the same name.
    """
    values, extra = cast("dict[str, object]", found["v"]), cast("dict[str, object] | None", found["extra"])
    _check_names(values, _field_names(kind))
    fields: dict[str, object] = {}
    for name, field in kind.model_fields.items():
        if name not in values and field.is_required():
            raise ValueError(f"no value for the field {name!r}")
        fields[name] = values[name] if name in values else field.get_default(call_default_factory=True)
    state = {"__pydantic_fields_set__": set(cast("list[str]", found["set"])), "__pydantic_extra__": extra}
    made = kind.__new__(kind)
    made.__setstate__({**state, "__dict__": dict(fields), "__pydantic_private__": None})
    if kind.__pydantic_post_init__:  # this creates the private attributes
        made.model_post_init(None)
        # Set the state again: `model_post_init` changed the values when the model was first made, and has now changed
        # them a second time.
        private = {**(made.__pydantic_private__ or {}), **cast("dict[str, object]", found.get("private", {}))}
        made.__setstate__({**state, "__dict__": fields, "__pydantic_private__": private or None})
    return made


def _check_names(values: dict[str, object], names: list[str]) -> None:
    unknown = values.keys() - set(names)
    if unknown:
        raise ValueError(f"no field {min(unknown)!r}")


def _find_class(name: str, shape: str, returns: type | None) -> type | None:
    if returns is not None and _fits(returns, shape) and _class_name(returns) == name:
        return returns
    module, _, path = RENAMED.get(name, name).partition(":")
    found: object = sys.modules.get(current_name(module))
    for part in path.split("."):
        # Not getattr: a module's `__getattr__` may import the name.
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and _fits(found, shape) else None


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


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_construct") and hasattr(kind, "model_extra") and hasattr(kind, "model_fields")


def _field_names(kind: type) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind.model_fields)  # type: ignore[attr-defined]  # a pydantic class, see _is_model


def _class_name(kind: type) -> str:
    return first_class_name(kind.__module__, kind.__qualname__)


def _tag(name: str, value: Json) -> Json:
    return {TAG: name, "v": value}


_COLLECTIONS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
