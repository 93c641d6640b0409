"""The idempotency rules of routes, declared on the handler, or by path if the middleware cannot find the handler.

@app.post("/payments")
@idempotent(required=True, on_crash="hold", fields=("order_id", "amount"))
async def pay(request): ...
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from onceward.errors import InvalidOption
from onceward.http.keyed.profiles import profile_options
from onceward.http.problem_formats import ProblemFormat, as_format
from onceward.http.request.key_source import KeyFunction, KeySource, as_source
from onceward.http.webhooks import RETAIN_SECONDS as WEBHOOK_RETAIN_SECONDS
from onceward.http.webhooks import WebhookRule
from onceward.ledger.terms import LEASE_SECONDS_MAX, REFUSE_SECONDS, RETAIN_SECONDS_MAX, check_seconds

H = TypeVar("H")

REPEAT = "repeat"
HOLD = "hold"
MARK = "__idempotency__"
# Values of `compare=`, `scope=` and `after_retention=`.
BYTES, BODY, JSON = "bytes", "body", "json"
PRINCIPAL, ENDPOINT = "principal", "endpoint"
RUN, REFUSE = "run", "refuse"
_CHOICES = {"compare": (BYTES, BODY, JSON), "scope": (PRINCIPAL, ENDPOINT), "after_retention": (RUN, REFUSE)}


@dataclass(slots=True)
class Declared:
    """The number of handlers in this process with a rule. If it is 0, requests skip the lookup of their handler."""

    rules: int = 0
    required: int = 0
    keys: int = 0


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
        key: Where the request carries its key: `header()`, `query()`, `json_field()`, `first_of()`, or a function of
            the head and the body that returns the key or None.
        compare: How requests with the same key are compared. "bytes": the whole request. "body": only the bytes of the
            body. "json": only the JSON value of the body. The method and the path always count.
        scope: "principal": one operation per key and caller. "endpoint": the same key on another method or path is
            another operation.
        problem: The format of refusals: "problem_json", "acp_error", "stripe_error", "ucp_error", or a function of
            the refusal.
        echo: Whether every response to a keyed request carries `Idempotency-Key`.
        after_retention: "run": the key is free when its retention is over. "refuse": it gets 409 `expired` for another
            30 days.
        max_keys_per_principal: The number of new keys that each caller may send per minute, in each process; above it,
            429. Routes that declare the same number share one count.
        profile: A preset of these options: "ietf", "acp", "ucp" or "stripe". Explicit options win.
        webhook: A rule of `onceward.http.webhooks`. It sets `key`, `compare` and `scope`.

    Raises:
        InvalidOption: A value is wrong, or two options exclude each other.
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
    key: KeySource | KeyFunction | None = None
    compare: str | None = None
    scope: str | None = None
    problem: ProblemFormat | str | None = None
    echo: bool | None = None
    after_retention: str | None = None
    max_keys_per_principal: int | None = None
    profile: str | None = None
    webhook: WebhookRule | None = None
    # Derived from the options once, because every request reads them.
    #
    # True if requests are compared as a whole and belong to their principal, without a limit: the defaults.
    is_plain: bool = field(init=False, repr=False, compare=False)
    # The time for which the key is refused after its retention; None if it is free then.
    refuse_seconds: float | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.on_crash not in (None, REPEAT, HOLD):
            raise InvalidOption(f"on_crash= must be 'repeat' or 'hold', got {self.on_crash!r}")
        if self.lease_seconds is not None:
            check_seconds("lease_seconds", self.lease_seconds, LEASE_SECONDS_MAX, positive=True)
        if self.retain_seconds is not None:
            check_seconds("retain_seconds", self.retain_seconds, RETAIN_SECONDS_MAX)
        if self.wait_seconds is not None:
            check_seconds("wait_seconds", self.wait_seconds, LEASE_SECONDS_MAX)
        for name in ("required", "store", "digest", "echo"):
            if not isinstance(getattr(self, name), bool | None):
                raise InvalidOption(f"{name}= must be True or False, got {getattr(self, name)!r}")
        if self.fields is not None:
            if not isinstance(self.fields, tuple | list) or not all(
                isinstance(name, str) and name for name in self.fields
            ):
                raise InvalidOption(f"fields= must be a tuple of field names, got {self.fields!r}")
            object.__setattr__(self, "fields", tuple(self.fields))
            if self.digest:
                raise InvalidOption("digest=True compares the whole body; it cannot be combined with fields=")
        for name in ("max_body_bytes", "max_response_bytes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise InvalidOption(f"{name}= must be a number of bytes, 0 or more, got {value!r}")
        self._check_choices()
        self._fill()
        self._derive()

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise InvalidOption(f"{name}= must be one of {', '.join(choices)}, got {value!r}")
        limit = self.max_keys_per_principal
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidOption(f"max_keys_per_principal= must be a whole number, 1 or more, got {limit!r}")
        if self.key is not None:
            object.__setattr__(self, "key", as_source(self.key))
        if self.problem is not None:
            object.__setattr__(self, "problem", as_format(self.problem))
        if self.fields is not None and self.compare is not None:
            raise InvalidOption("fields= says which fields are compared; it cannot be combined with compare=")
        if self.digest and (self.compare == JSON or (self.source is not None and self.source.reads_body)):
            raise InvalidOption("digest=True does not read the body first; it cannot be combined with a key or a "
                                "comparison that needs the body")  # fmt: skip

    def _fill(self) -> None:
        """Fill the options that are not given from the profile or the webhook rule."""
        preset: Mapping[str, Any] = {} if self.profile is None else profile_options(self.profile)
        if self.webhook is not None:
            if not isinstance(self.webhook, WebhookRule):
                raise InvalidOption(f"webhook= must be a rule of onceward.http.webhooks, got {self.webhook!r}")
            taken = [name for name in ("key", "compare", "scope", "fields", "digest", "profile") if getattr(self, name)]
            if taken:
                raise InvalidOption(f"webhook= decides how deliveries are compared; leave out {taken[0]}=")
            preset = {
                "key": self.webhook.key,
                "required": True,
                "scope": ENDPOINT,
                "retain_seconds": WEBHOOK_RETAIN_SECONDS,
            }
        for name, value in preset.items():
            # fields= and digest= replace the comparison of a profile.
            replaced = name == "compare" and (self.fields is not None or bool(self.digest))
            if name in _NAMES and getattr(self, name) is None and not replaced:
                object.__setattr__(self, name, value)

    def _derive(self) -> None:
        plain = self.compare == BYTES and self.scope == PRINCIPAL
        is_plain = plain and self.webhook is None and self.max_keys_per_principal is None
        object.__setattr__(self, "is_plain", is_plain)
        object.__setattr__(self, "refuse_seconds", REFUSE_SECONDS if self.after_retention == REFUSE else None)

    @property
    def source(self) -> KeySource | None:
        """The source of the key; None for the two key headers."""
        return cast("KeySource | None", self.key)

    @property
    def problem_format(self) -> ProblemFormat | None:
        """The format of refusals; None for problem JSON."""
        return cast("ProblemFormat | None", self.problem)

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
        declared.keys += self.key is not None
        return handler

    def over(self, default: Rule) -> Rule:
        """Complete the rule with the values of a default rule.

        Args:
            default: The rule that supplies the values that are None here.

        Returns:
            The completed rule.
        """
        # Both rules are checked and filled already; the result of both need not be a rule that one could declare.
        completed = object.__new__(Rule)
        for name in _NAMES:
            own = getattr(self, name)
            object.__setattr__(completed, name, getattr(default, name) if own is None else own)
        if completed.digest and completed.compare == JSON:
            # The digest is of the bytes. The middleware's own comparison would refuse a retry without the header.
            object.__setattr__(completed, "compare", BODY)
        completed._derive()
        return completed


_NAMES = tuple(option.name for option in dataclasses.fields(Rule) if option.init)


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
        self.keys = any(rule.key is not None for rule in rules.values())

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
