"""The settings of a middleware and the ledger it asks: whether a keyed request runs, waits, or has been answered."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Coroutine
from typing import Any, TypeAlias, cast

from onceward.core.claim import SECOND, Busy, Claim, Found, InDoubt, Mismatch, Replay
from onceward.core.fingerprint import Digest
from onceward.core.record import record
from onceward.core.response import DENY_HEADERS, keeps_status
from onceward.errors import InvalidOption, OncewardError, StoreUnavailable
from onceward.http.kept import Form
from onceward.http.observe import Observer
from onceward.http.options import (
    LEASE_SECONDS,
    MAX_BODY_BYTES,
    MAX_RESPONSE_BYTES,
    MAX_STREAM_SECONDS,
    METHODS,
    OF_A_LEDGER,
    PROCEED,
    PURGE_SECONDS,
    STORE_SECONDS,
    Options,
    cookie_names,
    seconds,
    texts,
)
from onceward.http.principal import Principal, cookies_in, with_cookies
from onceward.http.problem import BUSY_RETRY_SECONDS
from onceward.http.rules import REPEAT, PathRules, Rule, declared
from onceward.http.seal import Seal
from onceward.ledger import RETAIN_SECONDS, Ledger
from onceward.store import Store
from onceward.store.check import check
from onceward.store.failure_log import report
from onceward.store.open import open_store
from onceward.store.upkeep import POLL_SECONDS_MAX, POLL_SECONDS_MIN
from onceward.terms import LEASE_SECONDS_MAX, check_seconds

logger = logging.getLogger("onceward.http")


@record(frozen=True, slots=True)
class Asked:
    """A keyed request, as the ledger sees it."""

    key: str
    principal: Principal
    fingerprint: Digest
    endpoint: str
    rule: Rule
    wait_seconds: float

    @property
    def whole_fingerprint(self) -> Digest:
        """What the entry is claimed with: the request, and the cookies where they count."""
        return with_cookies(self.fingerprint, self.principal.cookies)

    def is_served_by(self, fingerprint: str) -> bool:
        """Whether an entry with this fingerprint is this request's: one claimed without cookies is for all cookies."""
        return fingerprint in (self.whole_fingerprint, self.fingerprint)

    def is_changed_from(self, fingerprint: str) -> bool:
        """Whether the entry was claimed with other cookies, so that it may be another caller's."""
        held = cookies_in(fingerprint)
        return self.principal.cookies is not None and bool(held) and held != self.principal.cookies


@record(frozen=True, slots=True)
class PrincipalChanged:
    """The key was claimed with other cookies. Nothing says whether by the same caller, so nothing of it is shown."""


Admitted: TypeAlias = Found | PrincipalChanged


class Guard:
    """Made once for an application."""

    def __init__(self, store: str | Store | Ledger, options: Options) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise InvalidOption(f"unknown option {min(unknown)!r}; there are {', '.join(Options.__annotations__)}")
        # A setting that is not there may be passed on as None.
        options = cast("Options", {name: value for name, value in options.items() if value is not None})
        own = not isinstance(store, Ledger)
        for name in OF_A_LEDGER:
            if name in options and not own:
                raise InvalidOption(f"{name}= is for a store that the middleware opens; the ledger given has its own")
        self.default = Rule(
            required=options.get("required", False),
            on_crash=options.get("on_crash", REPEAT),
            lease_seconds=options.get("lease_seconds", LEASE_SECONDS if own else None),
            retain_seconds=options.get("retain_seconds", RETAIN_SECONDS if own else None),
            wait_seconds=options.get("wait_seconds", 0.0),
            store=True,
            max_body_bytes=options.get("max_body_bytes", MAX_BODY_BYTES),
            max_response_bytes=options.get("max_response_bytes", MAX_RESPONSE_BYTES),
            digest=False,
        )
        self.methods = texts("methods", options.get("methods", METHODS), str.upper)
        self.paths = tuple(texts("paths", options.get("paths", ()), str))
        if not all(path.startswith("/") for path in self.paths):
            raise InvalidOption(f"paths= are the beginnings of paths, such as '/api/', not {self.paths!r}")
        self.rules = PathRules(options.get("rules", {}))
        self.principal = options.get("principal")
        self.session_cookies = cookie_names(options.get("session_cookies", ()))
        self._variant = options.get("variant")
        self.keep_status = options.get("keep_status", keeps_status)
        functions = {"principal": self.principal, "variant": self._variant, "keep_status": self.keep_status}
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise InvalidOption(f"{name}= is a function, not {function!r}")
        self.max_stream_seconds = seconds("max_stream_seconds", options.get("max_stream_seconds", MAX_STREAM_SECONDS))
        self._purge_seconds = seconds("purge_seconds", options.get("purge_seconds", PURGE_SECONDS))
        check_seconds("store_seconds", options.get("store_seconds", STORE_SECONDS), LEASE_SECONDS_MAX)
        self.enabled = options.get("enabled", True)
        if not isinstance(self.enabled, bool):
            raise InvalidOption(f"enabled= is True or False, not {self.enabled!r}")
        if options.get("on_store_error", "fail") not in ("fail", PROCEED):
            raise InvalidOption(f"on_store_error= is 'fail' or 'proceed', not {options.get('on_store_error')!r}")
        self.proceeds = options.get("on_store_error") == PROCEED
        deny = texts("deny_headers", options.get("deny_headers", DENY_HEADERS), str.lower)
        if not all(name.isascii() for name in deny):
            raise InvalidOption(f"deny_headers= are names of headers, not {sorted(deny)!r}")
        keys = options.get("encryption_keys", ())
        # An empty text is no empty list: it is a key that somebody forgot to set.
        seals = not isinstance(keys, tuple | list) or bool(keys)
        self.form = Form(frozenset(name.encode() for name in deny), Seal(keys) if seals else None)
        self.observer = Observer(options.get("metrics", True))
        self._open = functools.partial(_ledger, store, options)
        self.ledger = self._open()
        self._own = isinstance(store, str)
        self._purges = False
        self._rules: dict[Rule, Rule] = {}
        self._requires = self.default.required or self.rules.required
        self._told_fleeting = False
        self._told_changed = False

    async def check(self) -> str:
        """Look at the store when the application starts: what only an operator can correct, or nothing.

        A store that is down may come back: that is in the log, and requests get 503 until it does.
        """
        if self.enabled:
            try:
                await self.ledger.line.call(check)
            except OncewardError as error:
                report(error)
                if not error.retryable:
                    return f"the store of idempotency keys cannot be used: {error}"
            self._look_after()
        return ""

    def _look_after(self) -> None:
        """Purge, and surface doubts, in the background: from the application's start on, else from the first key on."""
        if self._purge_seconds and not self._purges:
            self._purges = True
            self.ledger.purge_every(self._purge_seconds)

    def covers(self, path: str) -> bool:
        """Whether requests to this path are checked."""
        return not self.paths or path.startswith(self.paths)

    def rule(self, said: Rule | None, path: str) -> Rule:
        """What holds for a request: what its handler declares, else its path, and the defaults for the rest."""
        said = said or self.rules.find(path)
        if said is None:
            return self.default
        found = self._rules.get(said)
        if found is None:
            found = self._rules[said] = said.over(self.default)
        return found

    def variant(self, carrier: Any) -> bytes | None:
        """What tells this request from others, beyond what was sent; None where nothing does."""
        said = None if self._variant is None else self._variant(carrier)
        if said is None:
            return None
        if not isinstance(said, str):
            raise InvalidOption(f"variant= must give a text, or None; it gave {said!r}")
        return said.encode("utf-8", "surrogatepass")

    @property
    def may_require(self) -> bool:
        """Whether any request might need a key, so that one without it has to be looked at."""
        return bool(declared.required or self._requires)

    async def admit(self, asked: Asked) -> Admitted | None:
        """Ask for the key, waiting for a running duplicate as long as the request would. None: proceed unprotected."""
        start = time.monotonic()
        self._look_after()
        found: Admitted
        try:
            found = await self._begin(asked, asked.whole_fingerprint)
            if isinstance(found, Mismatch) and asked.principal.cookies is not None:
                found = await self._mismatched(asked, found)
            if isinstance(found, Busy) and asked.wait_seconds > 0:
                found = await self._wait(asked, found)
        except StoreUnavailable as error:
            self.observer.store_failed(asked.key, proceeded=self.proceeds)
            if self.proceeds:
                report(error)
                return None
            raise
        status = _STATUS[type(found)]
        cached = isinstance(found, Replay) and found.entry.outcome.kept
        self.observer.checked(asked.key, status, cached=cached, seconds=time.monotonic() - start)
        return found

    def _begin(self, asked: Asked, fingerprint: Digest) -> Coroutine[Any, Any, Found]:
        rule = asked.rule
        return self.ledger.begin(
            asked.principal.scope,
            asked.key,
            fingerprint,
            repeatable=rule.repeatable,
            lease_seconds=rule.lease_seconds,
            retain_seconds=rule.retain_seconds,
            user_id=asked.principal.name,
            endpoint=asked.endpoint,
        )

    async def _mismatched(self, asked: Asked, found: Found) -> Admitted:
        """Decide between other cookies and another request. Ask an entry claimed without cookies as such a caller.

        The entry may change between two questions. A caller with cookies never keeps a new entry without them: its
        response would be for everyone who has the key.
        """
        while isinstance(found, Mismatch):
            held = found.entry.fingerprint
            if asked.is_changed_from(held):
                return self._changed()
            if not asked.is_served_by(held):
                return found
            found = await self._begin(asked, Digest(held))
            if isinstance(found, Claim) and found.attempt == 1 and found.entry.fingerprint != asked.whole_fingerprint:
                await self.ledger.release(found)
                found = await self._begin(asked, asked.whole_fingerprint)
        return found

    def _changed(self) -> PrincipalChanged:
        if not self._told_changed:
            self._told_changed = True
            logger.warning(
                "refused a key that was claimed with other cookies: without principal= or session_cookies= every cookie"
                " counts, also those that a load balancer or analytics change"
            )
        return PrincipalChanged()

    async def _wait(self, asked: Asked, found: Busy) -> Admitted:
        """For the end of the running one, or for the beginning of its stream, and ask again."""
        line = self.ledger.line
        deadline = line.monotonic() + asked.wait_seconds
        pause = POLL_SECONDS_MIN
        while not found.entry.outcome.chunks and (now := line.monotonic()) < deadline:
            if found.locked:
                await line.sleep(min(pause, deadline - now))
                pause = min(pause * 2, POLL_SECONDS_MAX)
            else:
                await self.ledger.wait(found.entry, deadline - now)
            again: Admitted = await self._begin(asked, asked.whole_fingerprint)
            if isinstance(again, Mismatch):
                again = await self._mismatched(asked, again)
            if not isinstance(again, Busy):
                return again
            found = again
        return found

    async def unknown(self, asked: Asked, claim: Claim, note: str) -> None:
        """Nobody knows what happened. Where it may be repeated, the next one takes over; elsewhere it is a doubt."""
        if asked.rule.repeatable:
            await self.ledger.lapse(claim)
        elif await self.ledger.doubt(claim, self._note(note)):
            self.observer.put_in_doubt(asked.key)

    async def failed(self, asked: Asked, claim: Claim, note: str) -> None:
        """The handler raised. Where it may be repeated, the next one runs again; elsewhere it is a doubt."""
        if asked.rule.repeatable:
            await self.ledger.fail(claim, self._note(note), asked.rule.retain_seconds)
        elif await self.ledger.doubt(claim, self._note(note)):
            self.observer.put_in_doubt(asked.key)

    def _note(self, note: str) -> str:
        """An exception may quote what the responses are sealed for. Then only its type is kept."""
        return note if self.form.seal is None else note.partition(":")[0]

    def tell_fleeting(self) -> None:
        """Said once: whose keys these are changes with each login."""
        if not self._told_fleeting:
            self._told_fleeting = True
            logger.warning(
                "keys belong to a digest of the credentials sent: after a token is refreshed the same key runs again;"
                " give the middleware principal=, or authenticate outside of it"
            )

    def close(self) -> None:
        """Let go of the ledger, if it is the middleware's own. An application that starts again opens it anew."""
        if self._own:
            ledger, self.ledger, self._purges = self.ledger, self._open(), False
            ledger.close()


_STATUS: dict[type[Admitted], str] = {
    Claim: "processing_started",
    Busy: "duplicate_processing",
    Replay: "duplicate_completed",
    Mismatch: "fingerprint_mismatch",
    PrincipalChanged: "fingerprint_mismatch",
    InDoubt: "in_doubt",
}


def _ledger(store: str | Store | Ledger, options: Options) -> Ledger:
    if isinstance(store, Ledger):
        return store
    if not isinstance(store, str) and not hasattr(store, "commit"):
        raise InvalidOption(f"store= is a URL, a store or a ledger, not {store!r}")
    return Ledger(
        open_store(store) if isinstance(store, str) else store,
        lease_seconds=options.get("lease_seconds") or LEASE_SECONDS,
        namespace=options.get("namespace", "onceward"),
        patience_seconds=options.get("store_seconds", STORE_SECONDS),
    )


def retry_seconds(found: Busy) -> int:
    """When to ask again for a key that another holds: as long as it has been held already, but no later than its lease
    ends, and at least a second. Everything by the store's clock.
    """
    entry, left = found.entry, found.retry_after
    held = entry.lease_until - left - entry.claimed_at
    return max(BUSY_RETRY_SECONDS, -(-min(held, left) // SECOND))
