"""Parsing and validation of request bodies. Every refusal is a problem response."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

TEXT_CHARACTERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Field:
    """A text of at most `most` characters, a whole number from 1 to `most`, or one of `words`."""

    kind: type = str
    most: int = 200
    required: bool = True
    words: tuple[str, ...] = ()


Fields = Mapping[str, Field]

AGENT: Fields = {"name": Field(most=64)}
ACT: Fields = {"action": Field(most=64), "target": Field(required=False)}
HEARTBEAT: Fields = {"mood": Field(most=64, required=False)}
WRITING: Fields = {"title": Field(), "text": Field(most=TEXT_CHARACTERS_MAX)}
STORY: Fields = {"title": Field(required=False), "text": Field(most=TEXT_CHARACTERS_MAX, required=False)}
FEEDBACK: Fields = {"verdict": Field(words=("approve", "reject")), "comment": Field(most=4000, required=False)}
LETTER: Fields = {"to": Field(), "text": Field(most=TEXT_CHARACTERS_MAX)}
SALE: Fields = {"item": Field(), "amount": Field(int, most=1_000_000)}


class Refused(Exception):
    """The request is refused with a problem (RFC 9457), and nothing happens."""

    def __init__(self, status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.problem: dict[str, object] = {
            "type": f"urn:onceward:problem:{code}",
            "title": code,
            "status": status,
            "detail": detail,
            "code": code,
        }
        if errors:
            self.problem["errors"] = errors


def parse(body: bytes) -> dict[str, object]:
    """Parse the JSON object in a body. An empty body is an empty object."""
    try:
        order = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(400, "badRequest", "The body is not valid JSON.") from error
    if not isinstance(order, dict):
        raise Refused(400, "badRequest", "The body is not a JSON object.")
    return order


def check(order: Mapping[str, object], fields: Fields) -> dict[str, object]:
    """Return the fields of an order after checking them. All errors are reported together."""
    errors = [{"field": name, "message": "is not a known field"} for name in order if name not in fields]
    for name, field in fields.items():
        value = order.get(name)
        message = _wrong(value, field) if value is not None else "is missing" if field.required else ""
        if message:
            errors.append({"field": name, "message": message})
    if errors:
        first = f"{errors[0]['field']!a} {errors[0]['message']}"
        errors = [{**error, "field": ascii(error["field"])[1:-1]} for error in errors]
        raise Refused(400, "badRequest", f"The body has {len(errors)} invalid field(s): {first}.", errors)
    return {name: value for name, value in order.items() if value is not None}


def _wrong(value: object, field: Field) -> str:
    """Describe the error in a value; "" if it is valid."""
    if field.kind is int:
        return (
            "" if type(value) is int and 1 <= value <= field.most else f"is not a whole number from 1 to {field.most}"
        )
    if not isinstance(value, str) or not value.strip() or len(value) > field.most:
        return f"is not a text of 1 to {field.most} characters"
    # A lone surrogate cannot be stored as text.
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in value):
        return "contains a lone surrogate or NUL"
    if field.words and value not in field.words:
        return f"is not one of {', '.join(field.words)}"
    return ""
