"""JSON schemas for readers: an example value, a short name of the type, and the fields as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from onceward.hub.reference.markdown import line

# Parsed JSON.
Json = Mapping[str, Any]

_REF = "#/components/schemas/"
# Schemas may contain themselves.
_DEPTH_MAX = 6
_WORDS = {"string": "string", "integer": 1, "number": 1.5, "boolean": True, "null": None}
# Limits that a reader needs in order to send a valid value.
_LIMITS = {
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minimum": "from {:g}",
    "maximum": "up to {:g}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}
# A larger limit is not shown, because no request reaches it.
_LIMIT_MAX = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object, or a parameter.

    Attributes:
        name: The name, with its parents: `source.chat_id`.
        type_name: The type, for people.
        required: Whether it must be sent.
        about: The rendered description.
        limits: Limits and the default, for people.
        choices: All valid values, if there are few.
        example: A valid value, as text.
    """

    name: str
    type_name: str
    required: bool
    about: Markup
    limits: str = ""
    choices: tuple[str, ...] = ()
    example: str = ""
    place: str = ""
    is_file: bool = False
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Schemas:
    """The named schemas of a document, to which its other schemas refer."""

    by_name: Json

    def resolve(self, schema: Any) -> dict[str, Any]:
        """Follow references. Anything that does not lead to a schema becomes the one that allows every value."""
        found: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}
        for _ in range(_DEPTH_MAX):
            reference = found.pop("$ref", None)
            if not isinstance(reference, str):
                break
            named = self.by_name.get(reference.removeprefix(_REF))
            found = {**(named if isinstance(named, Mapping) else {}), **found}
        return found

    def example_of(self, schema: Any, depth: int = 0) -> Any:
        """Return a value of the type that a schema describes: its own example or default, or one made of its fields."""
        found = self.resolve(schema)
        for value in (*_own_examples(found), *(found.get("enum") or ())[:1]):
            return value
        if "const" in found:
            return found["const"]
        if found.get("default") is not None:
            return found["default"]
        if depth > _DEPTH_MAX:
            return None
        for one in self._alternatives(found):
            if not found.get("properties"):
                return self.example_of(one, depth + 1)
        if found.get("allOf") and not found.get("properties") and not found.get("type"):
            return self.example_of(found["allOf"][0], depth + 1)
        kind = _kind(found)
        if kind == "array":
            return [self.example_of(found.get("items"), depth + 1)]
        if kind == "object":
            fields = found.get("properties") or {}
            return {name: self.example_of(one, depth + 1) for name, one in fields.items()}
        return _text(found) if kind == "string" else _number(found) if kind in {"integer", "number"} else _WORDS[kind]

    def type_name(self, schema: Any, depth: int = 0) -> str:
        """Return the type for people: `string`, `list of integer`, `string or null`."""
        found = self.resolve(schema)
        several = [self.type_name(one, depth + 1) for one in self._alternatives(found)] if depth <= _DEPTH_MAX else []
        if several and not found.get("properties"):
            return " or ".join(dict.fromkeys(several))
        if "enum" in found or "const" in found:
            return "one of these"
        types = found.get("type")
        if isinstance(types, list):
            return " or ".join(map(str, types))
        kind = _kind(found) if types or "properties" in found or "items" in found else "any"
        return f"list of {self.type_name(found.get('items'), depth + 1)}" if kind == "array" else kind

    def fields_of(self, schema: Any) -> list[Field]:
        """Return the fields of an object, with those of objects in it. The fields of a repeated object are listed once."""
        return list(self._fields_of(schema, "", []))

    def _fields_of(self, schema: Any, prefix: str, listed: list[Any]) -> Iterator[Field]:
        found = self.resolve(schema)
        fields = found.get("properties")
        if not fields:
            for one in self._alternatives(found):
                if self.resolve(one).get("properties"):
                    yield from self._fields_of(one, prefix, listed)
            return
        if fields in listed:
            return
        listed.append(fields)
        required = found.get("required") or ()
        for name, one in fields.items():
            yield self.field_of(f"{prefix}{name}", one, required=name in required)
            inner = self._inner(one)
            if inner:
                yield from self._fields_of(inner, f"{prefix}{name}.", listed)

    def field_of(self, name: str, schema: Any, *, required: bool, place: str = "", about: str = "") -> Field:
        found = self.resolve(schema)
        default = found.get("default")
        limits = [
            text.format(found[limit])
            for limit, text in _LIMITS.items()
            if isinstance(found.get(limit), int | float) and 1 < abs(found[limit]) < _LIMIT_MAX
        ]
        if default not in (None, ""):
            limits.append(f"default {_shown(default)}")
        return Field(
            name=name,
            type_name=self.type_name(found),
            required=required,
            about=line(about or str(found.get("description") or "")),
            limits=", ".join(limits),
            choices=self._choices(found),
            example=_shown(next(iter(_own_examples(found)), "")),
            place=place,
            is_file="contentMediaType" in found or found.get("format") == "binary",
            is_list=found.get("type") == "array",
        )

    def _choices(self, found: Json) -> tuple[str, ...]:
        if found.get("type") == "boolean":
            return ("true", "false")
        values = list(found.get("enum") or ([found["const"]] if "const" in found else []))
        for one in self._alternatives(found):
            inner = self.resolve(one)
            values += inner.get("enum") or ([inner["const"]] if "const" in inner else [])
        return tuple(dict.fromkeys(_shown(value) for value in values if value is not None))

    def _alternatives(self, found: Json) -> list[Any]:
        several = [*(found.get("anyOf") or ()), *(found.get("oneOf") or ())]
        return [one for one in several if self.resolve(one).get("type") != "null"] or several

    def _inner(self, schema: Any) -> Any:
        """Return the schema of an object inside of a field: of the field itself, or of the items of its list."""
        found = self.resolve(schema)
        if found.get("type") == "array":
            return self._inner(found.get("items"))
        if found.get("properties"):
            return found
        return next((one for one in self._alternatives(found) if self.resolve(one).get("properties")), None)


def _own_examples(found: Json) -> list[Any]:
    examples = found.get("examples")
    return [found["example"]] if "example" in found else list(examples) if isinstance(examples, list) else []


def _kind(found: Json) -> str:
    types = found.get("type")
    kind = next((one for one in types if one != "null"), "null") if isinstance(types, list) else types
    if kind is None:
        kind = "object" if "properties" in found else "array" if "items" in found else "string"
    return str(kind) if kind in (*_WORDS, "object", "array") else "string"


def _text(found: Json) -> str:
    shortest, longest = found.get("minLength") or 0, found.get("maxLength")
    return str("string".ljust(shortest, "-"))[: longest if isinstance(longest, int) else None]


def _number(found: Json) -> int | float:
    lowest, highest = found.get("minimum"), found.get("maximum")
    value = 1 if lowest is None else max(1, lowest)
    value = value if highest is None else min(value, highest)
    return int(value) if found.get("type") == "integer" else value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
