"""The idempotency rules of routes, declared on the handler, or by path if the middleware cannot find the handler.

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
from onceward.ledger.terms import LEASE_SECONDS_MAX, RETAIN_SECONDS_MAX, check_seconds

H = TypeVar("H")

REPEAT = "repeat"
HOLD = "hold"
MARK = "__idempotency__"


@dataclass(slots=True)
class Declared:
    """The number of handlers in this process with a rule. If it is 0, requests skip the lookup of their handler."""

    rules: int = 0
    required: int = 0


declared = Declared()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule of a route, and the decorator `idempotent`. None stands for the middleware's own option.

    Args:
        required: Whether a request without a key gets 400.
        on_crash: "repeat": after a crash, a retry runs again. "hold": the request is in doubt after a crash, a 5xx
            response or an exception.
        lease_seconds: How long a silent holder keeps the key. The lease is renewed while the handler runs.
        retain_seconds: How long the response is replayed.
        wait_seconds: How long a duplicate waits for the running request before it gets 409.
        fields: The JSON fields by which requests are compared, instead of the whole body; `a.b` is a nested field.
        store: False records that the request was carried out, but never the response.
        max_body_bytes: Larger requests get 413.
        max_response_bytes: Larger responses are not stored.
        digest: Whether a verified Content-Digest or Repr-Digest (sha-256) is the fingerprint of the body, which is then
            not buffered. It cannot be combined with `fields`.

    Raises:
        InvalidOption: A value is wrong, or `digest` is combined with `fields`.
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
            raise InvalidOption(f"on_crash= must be 'repeat' or 'hold', got {self.on_crash!r}")
        if self.lease_seconds is not None:
            check_seconds("lease_seconds", self.lease_seconds, LEASE_SECONDS_MAX, positive=True)
        if self.retain_seconds is not None:
            check_seconds("retain_seconds", self.retain_seconds, RETAIN_SECONDS_MAX)
        if self.wait_seconds is not None:
            check_seconds("wait_seconds", self.wait_seconds, LEASE_SECONDS_MAX)
        for name in ("required", "store", "digest"):
            if not isinstance(getattr(self, name), bool | None):
                raise InvalidOption(f"{name}= must be True or False, got {getattr(self, name)!r}")
        if self.fields is not None:
            if not isinstance(self.fields, tuple | list) or not all(
                isinstance(field, str) and field for field in self.fields
            ):
                raise InvalidOption(f"fields= must be a tuple of field names, got {self.fields!r}")
            object.__setattr__(self, "fields", tuple(self.fields))
            if self.digest:
                raise InvalidOption("digest=True compares the whole body; it cannot be combined with fields=")
        for name in ("max_body_bytes", "max_response_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise InvalidOption(f"{name}= must be a number of bytes, 0 or more, got {value!r}")

    @property
    def repeatable(self) -> bool:
        return self.on_crash != HOLD

    def __call__(self, handler: H) -> H:
        """Declare the rule on a handler. The handler is marked, not wrapped: the middleware finds the mark.

        Args:
            handler: A function, or a class-based view or one of its methods.

        Returns:
            The same handler.
        """
        setattr(handler, MARK, self)
        declared.rules += 1
        declared.required += bool(self.required)
        return handler

    def over(self, default: Rule) -> Rule:
        """Complete the rule with the values of a default rule.

        Args:
            default: The rule that supplies the values that are None here.

        Returns:
            The completed rule.
        """
        own = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        return dataclasses.replace(default, **own)


_NAMES = tuple(field.name for field in dataclasses.fields(Rule))


# The name for use as a decorator: `@idempotent(required=True)`.
idempotent = Rule


def rule_on(handler: object) -> Rule | None:
    """Return the rule declared on a handler or on the function that it wraps."""
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
    """Rules by path, for handlers that cannot be found: `{"/pay/{id}": Rule(...), "/admin/*": Rule(...)}`."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        if not isinstance(rules, Mapping) or not all(isinstance(rule, Rule) for rule in rules.values()):
            raise InvalidOption(f"rules= must be a dict of rules by path, such as {{'/pay': Rule(...)}}, got {rules!r}")
        self._rules = [(_pattern(path), rule) for path, rule in rules.items()]
        self.required = any(rule.required for rule in rules.values())

    def find(self, path: str) -> Rule | None:
        """Return the rule of the first path that matches."""
        return next((rule for pattern, rule in self._rules if pattern.fullmatch(path)), None)


def _pattern(path: Any) -> re.Pattern[str]:
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidOption(f"rules= must have paths as keys, such as '/pay/{{id}}' or '/admin/*', got {path!r}")
    parts = re.split(r"(\{[^{}/]+\}|\*$)", path)
    # DOTALL: a path with a line break must match its rule, too.
    return re.compile("".join(_part(part) for part in parts), re.DOTALL)


def _part(part: str) -> str:
    if part == "*":
        return ".*"
    return "[^/]+" if part.startswith("{") and part.endswith("}") else re.escape(part)
