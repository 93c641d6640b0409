"""What a handler may know and say of its own operation: `idempotency(request)`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any, TypeVar, overload

from onceward.bound import Bound
from onceward.core.claim import SECOND, Claim
from onceward.core.outcome import Outcome
from onceward.core.record import record
from onceward.errors import NotGuarded, OutcomeNotKept
from onceward.http.kept import Form
from onceward.http.problem import Answer
from onceward.http.rules import Rule
from onceward.http.whole import taken_apart
from onceward.ledger import Ledger
from onceward.store.upkeep import Keep
from onceward.terms import RETAIN_SECONDS_MAX, check_seconds

# Where the operation lies in an ASGI scope and in a WSGI environ.
SCOPE_KEY = "onceward"
ENVIRON_KEY = "onceward.operation"
# Where a middleware names itself in the scope of the application's start.
LIFESPAN_KEY = "onceward.around"


class _Guarded:
    """Lies where an operation would lie: a middleware passed this request on, and it has no key."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<guarded by onceward, without a key>"


GUARDED = _Guarded()
# Set by `onceward.testing.guarded()`.
assume_guarded: ContextVar[bool] = ContextVar("onceward_assume_guarded", default=False)

D = TypeVar("D")
_REQUIRED = object()


class Operation:
    """The handler's own operation. Without a key in the request `key` is None, and the verbs do nothing."""

    __slots__ = (
        "_binding",
        "attempt",
        "began_at",
        "bound",
        "key",
        "over",
        "released",
        "retain_seconds",
        "stored",
        "version",
    )

    def __init__(self, key: str | None, binding: Binding | None = None) -> None:
        self.key = key
        self.attempt = 1 if binding is None else binding.claim.attempt
        # When the key came into use, in microseconds of the store's clock: the same for all attempts, and with the key
        # the name of this operation and no other.
        self.began_at = 0 if binding is None else binding.claim.entry.created_at
        # The fencing token: it only grows. Pass it to systems that can refuse an older one.
        self.version = 0 if binding is None else binding.claim.version
        # Its response has come to an end. The scope that it lies in may then be used for another call.
        self.over = False
        self.stored = True
        self.released = False
        self.retain_seconds: float | None = None
        self.bound: ResponseBound | None = None
        self._binding = binding

    def no_store(self) -> None:
        """Record that this happened, but keep nothing of the response: a retry gets 409 `outcome-not-kept`."""
        self.stored = False
        if self.bound is not None:
            self.bound.stored = False

    def release(self) -> None:
        """Give the key back as if it had never been asked for; said before the response.

        For a request that was damaged on its way: its answer must not be the one of the request that was meant.
        """
        self.released = True

    def keep_for(self, seconds: float) -> None:
        """Replay the response for this long."""
        self.retain_seconds = check_seconds("keep_for", seconds, RETAIN_SECONDS_MAX)
        if self.bound is not None:
            self.bound.keep_for(self.retain_seconds)

    def bind(self, connection: object) -> ResponseBound | Unbound:
        """Settle in the handler's own transaction: exactly once. Await it on async connections.

        bound = idempotency(request).bind(connection)
        connection.execute("INSERT …")
        bound.settle(response)        # before the transaction commits; awaited on async connections
        """
        if self._binding is None:
            return Unbound()
        self.bound = self._binding.bind(connection, self.retain_seconds)
        self.bound.stored = self.stored
        return self.bound


@record(frozen=True, slots=True)
class Binding:
    """What binding a request's claim needs."""

    ledger: Ledger
    form: Form
    claim: Claim
    rule: Rule
    kept: Keep

    def drop(self) -> None:
        """Stop renewing the claim."""
        self.ledger.drop(self.kept)

    def bind(self, connection: object, retain_seconds: float | None) -> ResponseBound:
        rule = self.rule
        retain = self.ledger.retain(rule.retain_seconds if retain_seconds is None else retain_seconds)
        store, entry = self.ledger.line.store, self.claim.entry
        bound = Bound.to(store, entry, connection, retain, rule.max_response_bytes or 0, self.drop)
        return ResponseBound(bound, self.form, self.claim, rule)


class ResponseBound:
    """A claim bound to the handler's transaction, to be settled with a response."""

    def __init__(self, bound: Bound, form: Form, claim: Claim, rule: Rule) -> None:
        self._bound = bound
        self._form = form
        self._claim = claim
        self._rule = rule
        self.stored = True
        self.response: Answer | None = None

    def __await__(self) -> Generator[Any, Any, ResponseBound]:
        yield from self._bound.__await__()
        return self

    @property
    def settled(self) -> bool:
        return self._bound.settled

    @property
    def open(self) -> bool:
        return self._bound.open

    def keep_for(self, seconds: float) -> None:
        """Replay the response for this long; said before it is settled."""
        self._bound.retain = int(seconds * SECOND)

    def settle(self, response: object) -> Awaitable[None] | None:
        """Write the response in the transaction; the middleware sends exactly it. Awaited on async connections.

        Takes a response of Starlette, FastAPI, Litestar, Flask or Django, a tuple (status, headers, body), or a value
        that is sent as JSON with status 200.
        """
        answer = taken_apart(response)
        outcome = Outcome(code=answer.status)
        chunks: tuple[bytes, ...] = ()
        keeps = self.stored and self._rule.store is not False
        if keeps and len(answer.body) <= (self._rule.max_response_bytes or 0):
            with contextlib.suppress(OutcomeNotKept):
                outcome, chunks = self._form.whole(self._claim.entry, answer.status, answer.headers, answer.body)
        self.response = answer
        return self._bound.settle_outcome(outcome, chunks)


class Unbound:
    """Stands in for a bound claim where the request has no key. It may be awaited or not, as the connection has it."""

    settled = False

    def __await__(self) -> Generator[Any, Any, Unbound]:
        yield from ()
        return self

    def settle(self, response: object) -> Unbound:  # noqa: ARG002  # there is nothing to write
        return self


def operation_around(carrier: dict[str, Any], name: str) -> Operation | None:
    """The operation that a middleware around this one has in hand, if it has; not one of an earlier call."""
    found = carrier.get(name)
    return found if isinstance(found, Operation) and not found.over else None


@overload
def idempotency(request: object) -> Operation: ...


@overload
def idempotency(request: object, default: D) -> Operation | D: ...


def idempotency(request: object, default: object = _REQUIRED) -> object:
    """The operation of this request: of Starlette, FastAPI, Litestar, Quart, Flask or Django, or a scope or environ.

    Raises `NotGuarded` where no idempotency middleware passed the request on, for then nothing is checked or recorded.
    With a `default`, that is given instead: an unguarded request is intended.
    """
    for carrier in (request, getattr(request, "scope", None), getattr(request, "environ", None)):
        if isinstance(carrier, dict):
            found = carrier.get(SCOPE_KEY) or carrier.get(ENVIRON_KEY)
            if isinstance(found, Operation):
                return found
            if found is GUARDED:
                return Operation(None)
    if assume_guarded.get():
        return Operation(None)
    if default is not _REQUIRED:
        return default
    raise NotGuarded(
        "idempotency(request) was called for a request that no idempotency middleware passed on, so its key is not checked. "
        "Add IdempotencyMiddleware (or WSGIIdempotencyMiddleware) to the application; where the request is meant to be "
        "unguarded, call idempotency(request, default=None); in a test that calls the handler itself, use "
        "onceward.testing.guarded()"
    )
