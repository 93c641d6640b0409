"""The options of both middlewares, their defaults, and the checks that several of them share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from onceward.errors import InvalidOption
from onceward.http.rules import Rule
from onceward.terms import RETAIN_SECONDS_MAX, check_seconds

# A worker that is silent for longer is taken for dead. Short, because in another pid namespace its death cannot be
# proved, and a client has to wait for this long; renewed every third of it while the handler runs.
LEASE_SECONDS = 30.0
METHODS = ("POST", "PUT", "PATCH")
MAX_BODY_BYTES = 10 * 1024 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
MAX_STREAM_SECONDS = 300.0
STORE_SECONDS = 5.0
PURGE_SECONDS = 60.0
PROCEED = "proceed"
# A token, as RFC 6265 has it.
_COOKIE_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What a ledger is made with, and nobody can say of one that is there.
OF_A_LEDGER = ("namespace", "store_seconds")


class Options(TypedDict, total=False):
    """Options of both middlewares.

    lease_seconds       how long a silent worker keeps a key (30); renewed while the handler runs
    retain_seconds      how long a response is replayed, counted from its end (24 hours)
    wait_seconds        how long a duplicate waits for the running one before 409 (0)
    principal           who asks: called with the ASGI scope or WSGI environ, gives a text or None
    session_cookies     names of the cookies that say who asks, where no Authorization does; all others then do not count
    variant             what else tells requests apart: called as `principal`, gives a text or None, which says nothing
    on_crash            "repeat" (default) or "hold"; see `Rule`
    methods             the methods that are checked (POST, PUT, PATCH)
    paths               only paths that begin with one of these are checked (all)
    required            a request without a key gets 400 (False)
    rules               rules by path, for applications whose handlers cannot carry them
    max_body_bytes      larger keyed requests get 413 (10 MiB)
    max_response_bytes  larger responses are not kept (16 MiB)
    max_stream_seconds  how long a stream goes on for a client that went away (300)
    deny_headers        response headers that are not replayed; replaces the default list
    keep_status         which statuses are kept; called with the status
    on_store_error      "fail" (503, default) or "proceed" (run unprotected)
    store_seconds       how long a store that fails is asked again before 503 (5); not beside a ledger
    purge_seconds       how often expired keys are deleted in the background (60; 0: never)
    encryption_keys     seal kept responses with the first, open with any (none)
    metrics             True, False, or a prometheus registry
    namespace           separates applications that share one store ("onceward"); not beside a ledger
    enabled             False switches all of it off
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


def texts(name: str, values: Iterable[str], form: Callable[[str], str]) -> frozenset[str]:
    several = isinstance(values, Iterable) and not isinstance(values, str)
    found = tuple(values) if several else ()
    if not several or not all(isinstance(text, str) for text in found):
        raise InvalidOption(f"{name}= is a list of texts, not {values!r}")
    return frozenset(map(form, found))


def cookie_names(names: Iterable[str]) -> frozenset[bytes]:
    found = texts("session_cookies", names, str)
    # What no cookie can be called would never be found, and all cookies would count after all.
    if not all(_COOKIE_NAME.fullmatch(name) for name in found):
        raise InvalidOption(f"session_cookies= are names of cookies, such as ('sid',), not {sorted(found)!r}")
    return frozenset(name.encode() for name in found)


def seconds(name: str, value: object) -> float:
    return check_seconds(name, value, RETAIN_SECONDS_MAX)
