"""What clients may ask for: bodies are parsed and checked here, and every refusal is a clear problem answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

TEXT_CHARACTERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Field:
    """A text of a bounded length, a whole number from 1 to `most`, or one of a few words."""

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
    """The request is answered with a problem, as RFC 9457 wants it, and nothing happens."""

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
    """The JSON object in a body; an empty body is an empty object."""
    try:
        order = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise Refused(400, "badRequest", "the body is not JSON") from error
    if not isinstance(order, dict):
        raise Refused(400, "badRequest", "the body is not a JSON object")
    return order


def check(order: Mapping[str, object], fields: Fields) -> dict[str, object]:
    """The order's fields, each checked; whatever is wrong is said all at once."""
    errors = [{"field": name, "message": "is not known here"} for name in order if name not in fields]
    for name, field in fields.items():
        value = order.get(name)
        message = _wrong(value, field) if value is not None else "is missing" if field.required else ""
        if message:
            errors.append({"field": name, "message": message})
    if errors:
        first = f"{errors[0]['field']!a} {errors[0]['message']}"
        errors = [{**error, "field": ascii(error["field"])[1:-1]} for error in errors]
        raise Refused(400, "badRequest", f"the body has {len(errors)} wrong field(s): {first}", errors)
    return {name: value for name, value in order.items() if value is not None}


def _wrong(value: object, field: Field) -> str:
    """What is wrong with a value; nothing if it is right."""
    if field.kind is int:
        return (
            "" if type(value) is int and 1 <= value <= field.most else f"is not a whole number from 1 to {field.most}"
        )
    if not isinstance(value, str) or not value.strip() or len(value) > field.most:
        return f"is not a text of 1 to {field.most} characters"
    # A lone half of a character cannot be stored as text anywhere.
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in value):
        return "has characters that are no text"
    if field.words and value not in field.words:
        return f"is not one of {', '.join(field.words)}"
    return ""
