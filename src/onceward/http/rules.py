"""What holds for a route. Declared beside its handler, or by path where a framework cannot be asked.

@app.post("/payments")
@idempotent(required=True, on_crash="hold", fields=("order_id", "amount"))
async def pay(request): ...
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from onceward.errors import InvalidOption
from onceward.terms import LEASE_SECONDS_MAX, RETAIN_SECONDS_MAX, check_seconds

H = TypeVar("H")

REPEAT = "repeat"
HOLD = "hold"
MARK = "__idempotency__"


@dataclass(slots=True)
class Declared:
    """How many handlers of this process carry a rule. Where none does, nobody has to ask for it at every request."""

    rules: int = 0
    required: int = 0


declared = Declared()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """None means: as the middleware says for all routes.

    required            a request without a key gets 400
    on_crash            "repeat": a retry runs again; "hold": it is in doubt, and so are 5xx answers and exceptions
    lease_seconds       how long a silent holder keeps the key; renewed while the handler runs
    retain_seconds      how long the response is replayed
    wait_seconds        how long a duplicate waits for the running one before 409
    fields              JSON fields that tell requests apart, instead of the whole body; `a.b` is a field of a field
    store               False keeps that it happened, but never the response
    max_body_bytes      larger requests get 413
    max_response_bytes  larger responses are not kept
    digest              a verified Content-Digest or Repr-Digest (sha-256) stands for the body, which is not spooled;
                        not with `fields`
    """

    required: bool | None = None
    on_crash: str | None = None
    lease_seconds: float | None = None
    retain_seconds: float | None = None
    wait_seconds: float | None = None
    fields: tuple[str, ...] | None = None
    store: bool | None = None
    max_body_bytes: int | None = None
    max_response_bytes: int | None = None
    digest: bool | None = None

    def __post_init__(self) -> None:
        if self.on_crash not in (None, REPEAT, HOLD):
            raise InvalidOption(f"on_crash= is 'repeat' or 'hold', not {self.on_crash!r}")
        if self.lease_seconds is not None:
            check_seconds("lease_seconds", self.lease_seconds, LEASE_SECONDS_MAX, positive=True)
        if self.retain_seconds is not None:
            check_seconds("retain_seconds", self.retain_seconds, RETAIN_SECONDS_MAX)
        if self.wait_seconds is not None:
            check_seconds("wait_seconds", self.wait_seconds, LEASE_SECONDS_MAX)
        for name in ("required", "store", "digest"):
            if not isinstance(getattr(self, name), bool | None):
                raise InvalidOption(f"{name}= is True or False, not {getattr(self, name)!r}")
        if self.fields is not None:
            if not isinstance(self.fields, tuple | list) or not all(
                isinstance(field, str) and field for field in self.fields
            ):
                raise InvalidOption(f"fields= is a tuple of field names, not {self.fields!r}")
            object.__setattr__(self, "fields", tuple(self.fields))
            if self.digest:
                raise InvalidOption("digest=True takes a digest for the whole body; it cannot go with fields=")
        for name in ("max_body_bytes", "max_response_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise InvalidOption(f"{name}= is a number of bytes, not {value!r}")

    @property
    def repeatable(self) -> bool:
        return self.on_crash != HOLD

    def __call__(self, handler: H) -> H:
        """Declare the rule on a handler, which is not wrapped: the middleware looks it up."""
        setattr(handler, MARK, self)
        declared.rules += 1
        declared.required += bool(self.required)
        return handler

    def over(self, default: Rule) -> Rule:
        """The rule, with what it leaves open taken from the default."""
        said = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        return dataclasses.replace(default, **said)


_NAMES = tuple(field.name for field in dataclasses.fields(Rule))


# It reads as what it says: `@idempotent(required=True)`.
idempotent = Rule


def rule_on(handler: object) -> Rule | None:
    """The rule declared on a handler, found through the wrappers that say what they wrap."""
    seen = 0
    while handler is not None and seen < _WRAPPERS_MAX:
        rule = getattr(handler, MARK, None)
        if isinstance(rule, Rule):
            return rule
        handler = getattr(handler, "__wrapped__", None) or getattr(handler, "func", None)
        seen += 1
    return None


# A chain of decorators longer than this is a loop.
_WRAPPERS_MAX = 50


class PathRules:
    """Rules by path, for applications whose routes cannot be asked: `{"/pay/{id}": Rule(...), "/admin/*": Rule(...)}`."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        if not isinstance(rules, Mapping) or not all(isinstance(rule, Rule) for rule in rules.values()):
            raise InvalidOption(f"rules= is a dict of rules by path, such as {{'/pay': Rule(...)}}, not {rules!r}")
        self._rules = [(_pattern(path), rule) for path, rule in rules.items()]
        self.required = any(rule.required for rule in rules.values())

    def find(self, path: str) -> Rule | None:
        """The rule of the first path that matches."""
        return next((rule for pattern, rule in self._rules if pattern.fullmatch(path)), None)


def _pattern(path: Any) -> re.Pattern[str]:
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidOption(f"rules= are by path, such as '/pay/{{id}}' or '/admin/*', not {path!r}")
    parts = re.split(r"(\{[^{}/]+\}|\*$)", path)
    # A path may hold a line break, which must not lead past its rule.
    return re.compile("".join(_part(part) for part in parts), re.DOTALL)


def _part(part: str) -> str:
    if part == "*":
        return ".*"
    return "[^/]+" if part.startswith("{") and part.endswith("}") else re.escape(part)
