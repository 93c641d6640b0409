"""Admission: decide, by a middleware's options and its ledger, whether a keyed request runs, waits or is replayed."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias, cast

from onceward.core.claim import CHECK_STATUS, SECOND, Busy, Claim, Found, Mismatch, Replay
from onceward.core.fingerprint import Digest
from onceward.core.key import short_key
from onceward.core.log_event import log_event
from onceward.core.record import record
from onceward.errors import InvalidOption, OncewardError, StoreUnavailable
from onceward.http.keyed.key_limit import KeyLimit, counted_as
from onceward.http.keyed.options import (
    LEASE_SECONDS,
    LEDGER_OPTIONS,
    MAX_STREAM_SECONDS,
    METHODS,
    PROCEED,
    PURGE_SECONDS,
    STORE_SECONDS,
    MiddlewareOptions,
    check_functions,
    cookie_names,
    default_rule,
    seconds,
    texts,
)
from onceward.http.keyed.principal import KeyPrincipal, at_endpoint, cookies_in, with_cookies
from onceward.http.keyed.profiles import profile_options
from onceward.http.keyed.rules import BYTES, ENDPOINT, PathRules, Rule
from onceward.http.observer import TOO_MANY_KEYS, HttpObserver
from onceward.http.problem import BUSY_RETRY_SECONDS
from onceward.http.stored.codec import ResponseCodec
from onceward.http.stored.encryption import Encryption
from onceward.http.stored.policy import DENY_HEADERS, keeps_status
from onceward.ledger.internals import dispatcher_of
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import LEASE_SECONDS_MAX, check_seconds
from onceward.store import Store
from onceward.store.check import check
from onceward.store.dispatch.renewal import POLL_SECONDS_MAX, POLL_SECONDS_MIN
from onceward.store.failure_log import report
from onceward.store.open import open_store

logger = logging.getLogger("onceward.http")


@record(frozen=True, slots=True)
class KeyedRequest:
    """A keyed request in the ledger's terms."""

    key: str
    principal: KeyPrincipal
    fingerprint: Digest
    endpoint: str
    rule: Rule
    wait_seconds: float
    # The digest of the body of a webhook, whose fingerprint does not contain the body; "" for any other request.
    delivery: str = ""
    # The name under which a new key is counted; "" without a limit.
    counted: str = ""

    @property
    def whole_fingerprint(self) -> Digest:
        """The fingerprint to claim with: of the request, and of its cookies or its webhook body if they count."""
        return with_cookies(self.fingerprint, self.delivery or self.principal.cookies)

    def is_served_by(self, fingerprint: str) -> bool:
        """Return whether an entry with this fingerprint is of this request, with the same cookies or without any."""
        if self.delivery:
            return fingerprint.partition(".")[0] == self.fingerprint
        return fingerprint in (self.whole_fingerprint, self.fingerprint)

    def is_changed_from(self, fingerprint: str) -> bool:
        """Return whether the entry was claimed with other cookies, so that it may belong to another caller."""
        claimed_cookies = cookies_in(fingerprint)
        return (
            self.principal.cookies is not None and bool(claimed_cookies) and claimed_cookies != self.principal.cookies
        )


@record(frozen=True, slots=True)
class PrincipalChanged:
    """The key was claimed with other cookies. Its entry may belong to another caller, so nothing of it is revealed."""


@record(frozen=True, slots=True)
class TooManyKeys:
    """The key is new, and its principal has reached the limit of new keys. Nothing was written."""

    retry_after: int


AdmissionResult: TypeAlias = Found | PrincipalChanged | TooManyKeys

# The status of a check in metrics and logs.
_STATUS: Mapping[type[AdmissionResult], str] = CHECK_STATUS | {
    PrincipalChanged: CHECK_STATUS[Mismatch],
    TooManyKeys: TOO_MANY_KEYS,
}


class Admission:
    """The checked options of one middleware and its ledger; created once for an application.

    Raises:
        InvalidOption: An option is unknown or has a wrong value.
    """

    def __init__(self, store: str | Store | Ledger, options: MiddlewareOptions) -> None:
        unknown = set(options) - set(MiddlewareOptions.__annotations__)
        if unknown:
            raise InvalidOption(
                f"unknown option {min(unknown)!r}; the options are {', '.join(MiddlewareOptions.__annotations__)}"
            )
        # None means that the option was not given.
        given = {name: value for name, value in options.items() if value is not None}
        preset = profile_options(given["profile"]) if "profile" in given else {}
        options = cast("MiddlewareOptions", {**preset, **given})
        creates_ledger = not isinstance(store, Ledger)
        for name in LEDGER_OPTIONS:
            if name in options and not creates_ledger:
                raise InvalidOption(f"{name}= cannot be combined with a ledger as store=; set it on that ledger")
        self.default = default_rule(options, creates_ledger=creates_ledger)
        if self.default.source is not None and self.default.source.reads_body:
            raise InvalidOption(
                f"key= of a middleware cannot be {self.default.source.name}, because it needs the body of every request;"
                " declare it on the route with idempotent(key=...), or by path in rules="
            )
        self.methods = texts("methods", options.get("methods", METHODS), str.upper)
        self.paths = tuple(texts("paths", options.get("paths", ()), str))
        if not all(path.startswith("/") for path in self.paths):
            raise InvalidOption(f"paths= must be path prefixes, such as '/api/', got {self.paths!r}")
        self.rules = PathRules(options.get("rules", {}))
        self.principal = options.get("principal")
        self.session_cookies = cookie_names(options.get("session_cookies", ()))
        self._variant = options.get("variant")
        self.keep_status = options.get("keep_status", keeps_status)
        check_functions(principal=self.principal, variant=self._variant, keep_status=self.keep_status)
        self.max_stream_seconds = seconds("max_stream_seconds", options.get("max_stream_seconds", MAX_STREAM_SECONDS))
        self._purge_seconds = seconds("purge_seconds", options.get("purge_seconds", PURGE_SECONDS))
        check_seconds("store_seconds", options.get("store_seconds", STORE_SECONDS), LEASE_SECONDS_MAX)
        self.enabled = options.get("enabled", True)
        if not isinstance(self.enabled, bool):
            raise InvalidOption(f"enabled= must be True or False, got {self.enabled!r}")
        if options.get("on_store_error", "fail") not in ("fail", PROCEED):
            raise InvalidOption(f"on_store_error= must be 'fail' or 'proceed', got {options.get('on_store_error')!r}")
        self.proceeds = options.get("on_store_error") == PROCEED
        deny = texts("deny_headers", options.get("deny_headers", DENY_HEADERS), str.lower)
        if not all(name.isascii() for name in deny):
            raise InvalidOption(f"deny_headers= must be header names, got {sorted(deny)!r}")
        keys = options.get("encryption_keys", ())
        # An empty list means no encryption. An empty string is a key that was not set, and is refused.
        encrypts = not isinstance(keys, tuple | list) or bool(keys)
        self.codec = ResponseCodec(frozenset(name.encode() for name in deny), Encryption(keys) if encrypts else None)
        self.observer = HttpObserver(options.get("metrics", True))
        self._open = functools.partial(_ledger, store, options)
        self.ledger = self._open()
        self._closes_ledger = isinstance(store, str)
        self._purges = False
        # Declared and completed rules by the id of the declared one: hashing its options would cost time in each request.
        self._rules: dict[int, tuple[Rule, Rule]] = {}
        # Whether a request may have to have a key. See also `declared.required`.
        self.requires = self.default.required or self.rules.required
        # Whether a request may carry its key elsewhere than in the two key headers. See also `declared.keys`.
        self.finds_keys = self.default.key is not None or self.rules.keys
        self._key_limit = KeyLimit()
        self._warned_fleeting = False
        self._warned_changed = False
        # Called with each check: the request, its status, and whether a stored response is replayed.
        self.on_check: Callable[[KeyedRequest, str, bool], None] | None = None

    async def check(self) -> str:
        """Check the store when the application starts. Return the error that only an operator can correct, or "".

        A store that is down may come back: the failure is logged, and requests get 503 until then.
        """
        if self.enabled:
            try:
                await dispatcher_of(self.ledger).call(check)
            except OncewardError as error:
                report(error)
                if not error.retryable:
                    return f"the store of idempotency keys cannot be used: {error}"
            self._start_purging()
        return ""

    def _start_purging(self) -> None:
        """Start the background purge, which also finds entries in doubt: at startup, or else at the first key."""
        if self._purge_seconds and not self._purges:
            self._purges = True
            self.ledger.purge_every(self._purge_seconds)

    def covers(self, path: str) -> bool:
        """Return whether requests to this path are checked."""
        return not self.paths or path.startswith(self.paths)

    def rule(self, declared_rule: Rule | None, path: str) -> Rule:
        """Return the rule of a request: of its handler, or else of its path, completed with the defaults."""
        declared_rule = declared_rule or self.rules.find(path)
        if declared_rule is None:
            return self.default
        found = self._rules.get(id(declared_rule))
        if found is None:
            found = self._rules[id(declared_rule)] = declared_rule, declared_rule.over(self.default)
        return found[1]

    def variant(self, carrier: Any) -> bytes | None:
        """Return the result of `variant=` for this request as bytes; None if there is none."""
        text = None if self._variant is None else self._variant(carrier)
        if text is None:
            return None
        if not isinstance(text, str):
            raise InvalidOption(f"variant= must return a string or None, got {text!r}")
        return text.encode("utf-8", "surrogatepass")

    def scoped(
        self, rule: Rule, principal: KeyPrincipal, method: str, path: bytes, address: str
    ) -> tuple[KeyPrincipal, str]:
        """Return the principal in the scope of the rule, and the name under which its new keys are counted."""
        counted = ""
        if rule.max_keys_per_principal is not None:
            counted = counted_as(principal, address, by_address=rule.webhook is not None)
        return (at_endpoint(principal, method, path) if rule.scope == ENDPOINT else principal), counted

    async def admit(self, request: KeyedRequest) -> AdmissionResult | None:
        """Claim the key, or wait up to `wait_seconds` for a running duplicate. None: run without protection."""
        start = time.monotonic()
        self._start_purging()
        found: AdmissionResult
        try:
            if request.counted:
                found = await self._begin_counted(request)
            else:
                found = await self._begin(request, request.whole_fingerprint)
            if isinstance(found, Mismatch) and (request.principal.cookies is not None or request.delivery):
                if request.delivery:
                    _log_changed_body(request)
                found = await self._mismatched(request, found)
            if isinstance(found, Busy) and request.wait_seconds > 0:
                found = await self._wait(request, found)
        except StoreUnavailable as error:
            self.observer.store_failed(request.key, proceeded=self.proceeds)
            if self.proceeds:
                report(error)
                return None
            raise
        status = _STATUS[type(found)]
        cached = isinstance(found, Replay) and found.entry.outcome.kept
        self.observer.checked(request.key, status, cached=cached, seconds=time.monotonic() - start)
        if self.on_check is not None:
            self.on_check(request, status, cached)
        return found

    def _begin(self, request: KeyedRequest, fingerprint: Digest) -> Coroutine[Any, Any, Found]:
        rule = request.rule
        return self.ledger.begin(
            request.principal.scope,
            request.key,
            fingerprint,
            repeatable=rule.repeatable,
            lease_seconds=rule.lease_seconds,
            retain_seconds=rule.retain_seconds,
            user_id=request.principal.name,
            endpoint=request.endpoint,
        )

    async def _begin_counted(self, request: KeyedRequest) -> AdmissionResult:
        """Begin, unless the key is new and its principal has reached the limit of new keys. Then nothing is written."""
        limit = request.rule.max_keys_per_principal or 0
        wait_seconds = self._key_limit.take(request.counted, limit)
        if wait_seconds:
            if await self.ledger.read(request.principal.scope, request.key) is None:
                return TooManyKeys(wait_seconds)
            return await self._begin(request, request.whole_fingerprint)
        found: Found | None = None
        try:
            found = await self._begin(request, request.whole_fingerprint)
        finally:
            if not (isinstance(found, Claim) and found.attempt == 1):
                self._key_limit.give_back(request.counted, limit)
        return found

    async def _mismatched(self, request: KeyedRequest, found: Found) -> AdmissionResult:
        """Distinguish other cookies from another request. For an entry claimed without cookies, begin without them.

        A webhook with the same id and another body is the same delivery: begin with the body of the first one.

        For a request with cookies, the entry may change between two calls. A caller with cookies must not create an
        entry without them, because everyone with the key would get its response: such a claim is released.
        """
        while isinstance(found, Mismatch):
            claimed_fingerprint = found.entry.fingerprint
            if request.is_changed_from(claimed_fingerprint):
                return self._principal_changed()
            if not request.is_served_by(claimed_fingerprint):
                return found
            found = await self._begin(request, Digest(claimed_fingerprint))
            if isinstance(found, Claim) and found.attempt == 1 and found.entry.fingerprint != request.whole_fingerprint:
                await self.ledger.release(found)
                found = await self._begin(request, request.whole_fingerprint)
        return found

    def _principal_changed(self) -> PrincipalChanged:
        if not self._warned_changed:
            self._warned_changed = True
            log_event(
                logger.warning,
                "idempotency_principal_changed",
                reason="the key was claimed with other cookies; all cookies count, including those of load balancers",
                hint="give the middleware principal= or session_cookies=",
            )
        return PrincipalChanged()

    async def _wait(self, request: KeyedRequest, found: Busy) -> AdmissionResult:
        """Wait until the running duplicate ends or its stream begins, and begin again."""
        dispatcher = dispatcher_of(self.ledger)
        deadline = dispatcher.monotonic() + request.wait_seconds
        pause = POLL_SECONDS_MIN
        while not found.entry.outcome.chunks and (now := dispatcher.monotonic()) < deadline:
            if found.locked:
                await dispatcher.sleep(min(pause, deadline - now))
                pause = min(pause * 2, POLL_SECONDS_MAX)
            else:
                await self.ledger.wait(found.entry, deadline - now)
            again: AdmissionResult = await self._begin(request, request.whole_fingerprint)
            if isinstance(again, Mismatch):
                again = await self._mismatched(request, again)
            if not isinstance(again, Busy):
                return again
            found = again
        return found

    async def unknown(self, request: KeyedRequest, claim: Claim, note: str) -> None:
        """Record an unknown outcome: the next request takes over if the effect is repeatable, else it is in doubt."""
        if request.rule.repeatable:
            await self.ledger.lapse(claim)
        elif await self.ledger.doubt(claim, self._note(note)):
            self.observer.put_in_doubt(request.key)

    async def failed(self, request: KeyedRequest, claim: Claim, note: str) -> None:
        """Record that the handler raised: the next request runs again if it is repeatable, else it is in doubt."""
        if request.rule.repeatable:
            await self.ledger.fail(claim, self._note(note), request.rule.retain_seconds)
        elif await self.ledger.doubt(claim, self._note(note)):
            self.observer.put_in_doubt(request.key)

    def _note(self, note: str) -> str:
        """Store only the type of an exception if responses are encrypted: its text may quote the response."""
        return note if self.codec.encryption is None else note.partition(":")[0]

    def warn_fleeting(self) -> None:
        """Warn once that the principal of these keys changes with each login."""
        if not self._warned_fleeting:
            self._warned_fleeting = True
            log_event(
                logger.warning,
                "idempotency_principal_fleeting",
                reason="callers are identified by their credentials; after a token is refreshed, a retry runs again",
                hint="give the middleware principal=, or authenticate outside of it",
            )

    def close(self) -> None:
        """Close the ledger if the middleware opened it. An application that starts again opens it again."""
        if self._closes_ledger:
            ledger, self.ledger, self._purges = self.ledger, self._open(), False
            ledger.close()


def _ledger(store: str | Store | Ledger, options: MiddlewareOptions) -> Ledger:
    if isinstance(store, Ledger):
        return store
    if not isinstance(store, str) and not hasattr(store, "commit"):
        raise InvalidOption(f"store= must be a URL, a store or a ledger, got {store!r}")
    return Ledger(
        open_store(store) if isinstance(store, str) else store,
        lease_seconds=options.get("lease_seconds") or LEASE_SECONDS,
        namespace=options.get("namespace", "onceward"),
        patience_seconds=options.get("store_seconds", STORE_SECONDS),
    )


def compared(rule: Rule, query: bytes, media_type: str, digest: bytes) -> tuple[bytes, str, bytes, str]:
    """Return the parts of a request that are compared: query, media type, body, and separately a webhook's body."""
    if rule.webhook is not None:
        return b"", "", b"", digest.hex()[:DELIVERY_CHARACTERS]
    if rule.compare == BYTES:
        return query, media_type, digest, ""
    return b"", "", digest, ""


# 128 bits of the digest of a webhook's body, in hex.
DELIVERY_CHARACTERS = 32


def _log_changed_body(request: KeyedRequest) -> None:
    log_event(
        logger.warning,
        "webhook_body_changed",
        sender=request.principal.name.removeprefix("webhook:"),
        idempotency_key=short_key(request.key),
        endpoint=request.endpoint,
    )


def retry_seconds(found: Busy) -> int:
    """Return the `Retry-After` for a busy key: the age of its claim, at most the rest of its lease, at least 1 second.

    Both are measured by the store's clock.
    """
    entry, left = found.entry, found.retry_after
    age = entry.lease_until - left - entry.claimed_at
    return max(BUSY_RETRY_SECONDS, -(-min(age, left) // SECOND))
