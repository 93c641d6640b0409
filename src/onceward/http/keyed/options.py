"""The options of both middlewares, their defaults, and the checks that several of them share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from onceward.errors import InvalidOption
from onceward.http.keyed.rules import BYTES, PRINCIPAL, REPEAT, RUN, Rule
from onceward.http.problem_formats import ProblemFormat
from onceward.http.request.key_source import KeySource
from onceward.ledger.ledger import RETAIN_SECONDS
from onceward.ledger.terms import RETAIN_SECONDS_MAX, check_seconds

# A worker without a renewal for this time counts as dead. It is short, because a retry has to wait for it where death
# cannot be proved (another pid namespace). While the handler runs, the lease is renewed three times in this time.
LEASE_SECONDS = 30.0
METHODS = ("POST", "PUT", "PATCH")
MAX_BODY_BYTES = 10 * 1024 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MAX_STREAM_SECONDS = 300.0
STORE_SECONDS = 5.0
PURGE_SECONDS = 60.0
PROCEED = "proceed"
# A token, as defined in RFC 6265.
_COOKIE_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Options with which a ledger is created; they cannot be combined with an existing ledger.
LEDGER_OPTIONS = ("namespace", "store_seconds")


class MiddlewareOptions(TypedDict, total=False):
    """Options of both middlewares.

    Attributes:
        lease_seconds: How long a silent worker keeps a key (30). The lease is renewed while the handler runs.
        retain_seconds: How long a response is replayed, counted from its settlement (24 hours).
        wait_seconds: How long a duplicate waits for the running request before it gets 409 (0).
        principal: Returns the name of the caller, or None. Called with the ASGI scope or the WSGI environ.
        session_cookies: The names of the cookies that identify a caller without an Authorization header. Other
            cookies then do not count.
        variant: Returns a string that distinguishes requests further, or None. Called like `principal`.
        on_crash: "repeat" (default) or "hold"; see `Rule`.
        methods: The methods that are checked (POST, PUT, PATCH).
        paths: The beginnings of the paths that are checked (all).
        required: Whether a request without a key gets 400 (False).
        rules: Rules by path, for applications whose handlers cannot be found.
        max_body_bytes: Larger keyed requests get 413 (10 MiB).
        max_response_bytes: Larger responses are not stored (16 MiB).
        max_stream_seconds: How long a stream is recorded after its client disconnected (300).
        deny_headers: The response headers that are not replayed. Replaces the default list.
        keep_status: Returns whether a response with this status is stored.
        on_store_error: "fail" (503, default) or "proceed" (run without protection).
        store_seconds: How long a failing store is retried before 503 (5). Not allowed with a ledger.
        purge_seconds: The pause between two purges of expired keys in the background (60; 0: never).
        encryption_keys: Stored responses are encrypted with the first key and decrypted with any (none).
        metrics: True, False, or a prometheus registry.
        namespace: Separates applications that share one store ("onceward"). Not allowed with a ledger.
        enabled: False turns the middleware off.
        key: Where requests carry their key: `header()`, `query()`, or `first_of()` of them (the two key headers).
        compare: "bytes" (default), "body" or "json"; see `Rule`.
        scope: "principal" (default) or "endpoint"; see `Rule`.
        problem: The format of refusals: "problem_json" (default), "acp_error", "stripe_error", "ucp_error" or a
            function.
        echo: Whether every response to a keyed request carries `Idempotency-Key` (False).
        after_retention: "run" (default) or "refuse"; see `Rule`.
        max_keys_per_principal: The number of new keys that each caller may send per minute, in each process (no
            limit).
        profile: A preset of these options: "ietf", "acp", "ucp" or "stripe" (none). Explicit options win.
    """

    lease_seconds: float | None
    retain_seconds: float | None
    wait_seconds: float
    principal: Callable[[Any], Any] | None
    session_cookies: Iterable[str]
    variant: Callable[[Any], str | None] | None
    on_crash: str
    methods: Iterable[str]
    paths: Iterable[str]
    required: bool
    rules: Mapping[str, Rule]
    max_body_bytes: int
    max_response_bytes: int
    max_stream_seconds: float
    deny_headers: Iterable[str]
    keep_status: Callable[[int], bool]
    on_store_error: str
    store_seconds: float
    purge_seconds: float
    encryption_keys: Sequence[bytes]
    metrics: Any
    namespace: str
    enabled: bool
    key: KeySource
    compare: str
    scope: str
    problem: ProblemFormat | str
    echo: bool
    after_retention: str
    max_keys_per_principal: int | None
    profile: str


def texts(name: str, values: Iterable[str], form: Callable[[str], str]) -> frozenset[str]:
    several = isinstance(values, Iterable) and not isinstance(values, str)
    found = tuple(values) if several else ()
    if not several or not all(isinstance(text, str) for text in found):
        raise InvalidOption(f"{name}= must be a list of strings, got {values!r}")
    return frozenset(map(form, found))


def cookie_names(names: Iterable[str]) -> frozenset[bytes]:
    found = texts("session_cookies", names, str)
    # No cookie would match an impossible name, and then all cookies would count.
    if not all(_COOKIE_NAME.fullmatch(name) for name in found):
        raise InvalidOption(f"session_cookies= must be cookie names, such as ('sid',), got {sorted(found)!r}")
    return frozenset(name.encode() for name in found)


def seconds(name: str, value: object) -> float:
    return check_seconds(name, value, RETAIN_SECONDS_MAX)


def check_functions(**options: object) -> None:
    """Raise `InvalidOption` for a value that is neither a function nor None."""
    for name, function in options.items():
        if function is not None and not callable(function):
            raise InvalidOption(f"{name}= must be a function, got {function!r}")


def default_rule(options: MiddlewareOptions, *, creates_ledger: bool) -> Rule:
    """Return the rule of routes that declare nothing."""
    return Rule(
        required=options.get("required", False),
        on_crash=options.get("on_crash", REPEAT),
        lease_seconds=options.get("lease_seconds", LEASE_SECONDS if creates_ledger else None),
        retain_seconds=options.get("retain_seconds", RETAIN_SECONDS if creates_ledger else None),
        wait_seconds=options.get("wait_seconds", 0.0),
        store=True,
        max_body_bytes=options.get("max_body_bytes", MAX_BODY_BYTES),
        max_response_bytes=options.get("max_response_bytes", MAX_RESPONSE_BYTES),
        digest=False,
        key=options.get("key"),
        compare=options.get("compare", BYTES),
        scope=options.get("scope", PRINCIPAL),
        problem=options.get("problem"),
        echo=options.get("echo", False),
        after_retention=options.get("after_retention", RUN),
        max_keys_per_principal=options.get("max_keys_per_principal"),
    )
