"""The operation of a request, as its handler sees it: `idempotency(request)`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, overload
from uuid import uuid4

from onceward.core.claim import SECOND, Claim
from onceward.core.outcome import Outcome
from onceward.core.record import record
from onceward.errors import InvalidOption, NotGuarded, OutcomeNotKept
from onceward.http.keyed.framework_response import from_framework
from onceward.http.keyed.rules import Rule
from onceward.http.problem import Response
from onceward.http.stored.codec import ResponseCodec
from onceward.ledger.internals import dispatcher_of, key_for, retain_microseconds, stop_renewal
from onceward.ledger.ledger import Ledger
from onceward.ledger.recovery import RecoveryPoints
from onceward.ledger.terms import RETAIN_SECONDS_MAX, Effect, check_seconds, refuse_of
from onceward.ledger.transaction import AsyncConnection, Bound, S_co, SyncConnection, refuse_bound
from onceward.store.dispatch.renewal import Renewal

# The key of the operation in an ASGI scope and in a WSGI environ.
SCOPE_KEY = "onceward"
ENVIRON_KEY = "onceward.operation"
# The key of the list of middlewares in the lifespan scope.
LIFESPAN_KEY = "onceward.around"


class _Guarded:
    """Placeholder for the operation of a request that a middleware passed on without a claim."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<guarded by onceward, without a key>"


GUARDED = _Guarded()
# Set by `onceward.testing.guarded()`.
assume_guarded: ContextVar[bool] = ContextVar("onceward_assume_guarded", default=False)

D = TypeVar("D")
_REQUIRED = object()


class Operation:
    """The operation of a request, for its handler. Without a key, `key` is None and the methods do nothing.

    Attributes:
        key: The idempotency key of the request, or None.
        attempt: The number of times that the key was claimed, including this time.
        version: The fencing token of the claim, which only increases. Pass it to systems that can refuse an older one.
        began_at: When the key was first claimed, in microseconds of the store's clock. It is the same for all
            attempts. Together with the key it identifies this operation.
    """

    __slots__ = (
        "_binding",
        "_points",
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

    def __init__(self, key: str | None, binding: ClaimBinding | None = None) -> None:
        self.key = key
        self.attempt = 1 if binding is None else binding.claim.attempt
        self.began_at = 0 if binding is None else binding.claim.entry.created_at
        self.version = 0 if binding is None else binding.claim.version
        # True once the response is complete: the ASGI scope may then be used for another call.
        self.over = False
        self.stored = True
        self.released = False
        self.retain_seconds: float | None = None
        self.bound: ResponseBound[Any] | None = None
        self._binding = binding
        self._points: RecoveryPoints | None = None

    @property
    def recovered(self) -> Any:
        """The last recovery point of an earlier attempt, or None. It shows where to continue.

        Raises:
            OutcomeNotKept: The value is encrypted with a key that is not in `encryption_keys`.
        """
        binding = self._binding
        return None if binding is None else binding.codec.decode_recovery(binding.claim.entry)

    def recovery_point(self, value: object) -> Awaitable[None]:
        """Record what a later attempt must know, such as the id that a provider gave to a request.

        In an `async def` handler, await the result. In a `def` handler, the value is stored when the call returns, if
        the framework runs the handler in a thread, as most do. A `def` handler on the thread of an event loop (Litestar
        with `sync_to_thread=False`) must be an `async def` instead. The value is encrypted if responses are. Without
        a key, nothing is recorded.

        Args:
            value: JSON of at most 16 KiB. It replaces the value before.

        Returns:
            An awaitable. After it, or after the call in blocking code, the value is durable.

        Raises:
            InvalidOption: The value is not JSON, or is too large.
            ClaimLost: Another holder has taken the claim over. Stop.
            InsideBoundTransaction: The claim is bound to a transaction that is open.
            StoreUnavailable: The store did not respond; the value may have been stored.
        """
        if self._binding is None:
            return _nothing_to_record()
        if self.bound is not None and self.bound.open:
            refuse_bound()
        if self._points is None:
            self._points = self._binding.recovery_points()
        return self._points.record(value, blocks=False)

    def key_for(self, provider: str, step: str = "") -> str:
        """Return an idempotency key for a provider, such as a payment service that accepts one.

        It is the same in every attempt of this request that may have reached the provider, and does not reveal the key
        of the request. Without a key, every call returns a new one.

        Args:
            provider: The name of the provider. Each provider gets other keys.
            step: The name of the request, if the handler sends several to the provider.

        Returns:
            A UUID of 36 characters.

        Raises:
            InvalidOption: A name is not a text, or the claim was begun with a secret that the ledger no longer has.
        """
        for name, text in (("provider", provider), ("step", step)):
            if not isinstance(text, str):
                raise InvalidOption(f"{name} must be a text, not {text!r}")
        if self._binding is None:
            return str(uuid4())
        binding = self._binding
        return key_for(binding.ledger, binding.claim.entry, Effect.IDEMPOTENT, self.attempt, provider, step)

    def no_store(self) -> None:
        """Record that the request was carried out, but not its response: a retry gets 409 `outcome-not-kept`."""
        self.stored = False
        if self.bound is not None:
            self.bound.stored = False

    def release(self) -> None:
        """Release the key as if it had never been claimed. Call it before the response is sent.

        For a request that was damaged in transit: its response must not be replayed to a retry with the correct body.
        """
        self.released = True

    def keep_for(self, seconds: float) -> None:
        """Set how long the response is replayed, instead of the route's `retain_seconds`.

        Args:
            seconds: The retention, counted from the settlement.

        Raises:
            InvalidOption: `seconds` is not a number from 0 to the longest retention.
        """
        self.retain_seconds = check_seconds("keep_for", seconds, RETAIN_SECONDS_MAX)
        if self.bound is not None:
            self.bound.keep_for(self.retain_seconds)

    @overload
    def bind(self, connection: AsyncConnection) -> ResponseBound[Awaitable[None]] | Unbound: ...
    @overload
    def bind(self, connection: SyncConnection) -> ResponseBound[None] | Unbound: ...
    @overload
    def bind(self, connection: object) -> ResponseBound[Any] | Unbound: ...
    def bind(self, connection: object) -> ResponseBound[Any] | Unbound:
        """Bind the claim to the handler's transaction, so that effect and response commit together: exactly once.

            bound = idempotency(request).bind(connection)
            connection.execute("INSERT …")
            bound.settle(response)        # before the transaction commits; await it on async connections

        Args:
            connection: A connection with an open transaction, to the database of the ledger's store.

        Returns:
            The bound claim. Await it on async connections. Without a key in the request, an object with the same
            methods that does nothing.

        Raises:
            InvalidOption: The store cannot bind, or the connection is not one that it can use.
            ClaimLost: Another holder has taken the claim over, or the connection is to another database.
            TransactionConflict: The transaction cannot see or lock the claim. Roll back, and retry in a new one.
        """
        if self._binding is None:
            return Unbound()
        self.bound = self._binding.bind(connection, self.retain_seconds)
        self.bound.stored = self.stored
        return self.bound


@record(frozen=True, slots=True)
class ClaimBinding:
    """Everything needed to bind the claim of a request."""

    ledger: Ledger
    codec: ResponseCodec
    claim: Claim
    rule: Rule
    renewal: Renewal

    def stop_renewal(self) -> None:
        """Stop renewing the claim."""
        stop_renewal(self.ledger, self.renewal)

    def recovery_points(self) -> RecoveryPoints:
        entry = self.claim.entry
        return RecoveryPoints(self.ledger, self.claim, lambda text: self.codec.encode_recovery(entry, text))

    def bind(self, connection: object, retain_seconds: float | None) -> ResponseBound[Any]:
        rule = self.rule
        retain = retain_microseconds(self.ledger, rule.retain_seconds if retain_seconds is None else retain_seconds)
        store, entry = dispatcher_of(self.ledger).store, self.claim.entry
        refuse = refuse_of(rule.refuse_seconds, retain_ever=False)
        bound = Bound.to(store, entry, connection, retain, rule.max_response_bytes or 0, self.stop_renewal, refuse)
        return ResponseBound(bound, self.codec, self.claim, rule)


class ResponseBound(Generic[S_co]):
    """A claim bound to the handler's transaction, which `settle` settles with a response."""

    def __init__(self, bound: Bound[S_co], codec: ResponseCodec, claim: Claim, rule: Rule) -> None:
        self._bound = bound
        self._codec = codec
        self._claim = claim
        self._rule = rule
        self.stored = True
        self.response: Response | None = None

    def __await__(self: ResponseBound[Awaitable[None]]) -> Generator[Any, Any, ResponseBound[Awaitable[None]]]:
        yield from self._bound.__await__()
        return self

    @property
    def settled(self) -> bool:
        return self._bound.settled

    @property
    def open(self) -> bool:
        return self._bound.open

    def keep_for(self, seconds: float) -> None:
        """Set how long the response is replayed. Call it before `settle`."""
        self._bound.retain = int(seconds * SECOND)

    def settle(self, response: object) -> S_co:
        """Record the response in the transaction; the middleware then sends exactly this response.

        Args:
            response: A response of Starlette, FastAPI, Litestar, Flask or Django, a tuple (status, headers, body), or
                a value that is sent as JSON with status 200.

        Returns:
            An awaitable on async connections, else None.

        Raises:
            InvalidOption: The response is streamed, or its value has no JSON form.
            ClaimLost: Another holder has taken the claim over. Roll back.
            TransactionConflict: The transaction in which the claim was bound has ended.
        """
        converted = from_framework(response)
        outcome = Outcome(code=converted.status)
        chunks: tuple[bytes, ...] = ()
        keeps = self.stored and self._rule.store is not False
        if keeps and len(converted.body) <= (self._rule.max_response_bytes or 0):
            with contextlib.suppress(OutcomeNotKept):
                outcome, chunks = self._codec.encode_response(
                    self._claim.entry, converted.status, converted.headers, converted.body
                )
        self.response = converted
        return self._bound.settle_outcome(outcome, chunks)


class _nothing_to_record:  # noqa: N801  # used as a function
    """The result of a recovery point without a key. It may be awaited, but need not be."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class Unbound:
    """Stand-in for a bound claim if the request has no key. It may be awaited, but need not be."""

    settled = False

    def __await__(self) -> Generator[Any, Any, Unbound]:
        yield from ()
        return self

    def settle(self, response: object) -> Unbound:  # noqa: ARG002  # there is nothing to write
        return self


def outer_operation(carrier: dict[str, Any], name: str) -> Operation | None:
    """Return the running operation of an outer middleware, if there is one; never that of an earlier call."""
    found = carrier.get(name)
    return found if isinstance(found, Operation) and not found.over else None


@overload
def idempotency(request: object) -> Operation: ...


@overload
def idempotency(request: object, default: D) -> Operation | D: ...


def idempotency(request: object, default: object = _REQUIRED) -> object:
    """Return the operation of a request, to read its key and attempt, to bind it, or to control what is stored.

    Args:
        request: A request of Starlette, FastAPI, Litestar, Quart, Flask or Django, or an ASGI scope or WSGI environ.
        default: Returned if no idempotency middleware passed the request on. Give it if such requests are intended.

    Returns:
        The operation. Its `key` is None if the request has no key.

    Raises:
        NotGuarded: No idempotency middleware passed the request on, so its key is not checked, and there is no
            `default`.
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
        "idempotency(request) was called for a request that did not pass through an idempotency middleware, so its key "
        "is not checked. Add IdempotencyMiddleware (or WSGIIdempotencyMiddleware) to the application; if the request is "
        "unguarded on purpose, call idempotency(request, default=None); in a test that calls the handler itself, use "
        "onceward.testing.guarded()"
    )
