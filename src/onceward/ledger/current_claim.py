"""`current_claim()`: the claim of the running effect, for code inside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, overload

from onceward import errors
from onceward.core.claim import Claim
from onceward.ledger.internals import dispatcher_of, key_for, retain_microseconds, stop_renewal
from onceward.ledger.recovery import RecoveryPoints
from onceward.ledger.terms import Terms
from onceward.ledger.transaction import AsyncConnection, Bound, SyncConnection, refuse_bound
from onceward.store.dispatch.future import running_loop

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger
    from onceward.store.dispatch.renewal import Renewal


class CurrentClaim:
    """The claim of a running effect, returned by `current_claim`.

    Pass `version`, which only increases, to systems that can refuse older requests (fencing), and `key` to systems that
    accept an idempotency key.

    Attributes:
        key: The key of the claim.
        renewal: The background renewal of the claim, or None.
        bound: The transaction that the claim is bound to, or None.
    """

    def __init__(self, ledger: Ledger, claim: Claim, key: str, terms: Terms) -> None:
        self._ledger = ledger
        self._claim = claim
        self._terms = terms
        self.key = key
        self.renewal: Renewal | None = None
        self.bound: Bound[Any] | None = None
        # The event loop on whose thread a plain function runs as the effect, so that it cannot await.
        self.called_on: object = None
        self._points = RecoveryPoints(ledger, claim)

    @property
    def version(self) -> int:
        """The version of the claim: its fencing token."""
        return self._claim.version

    @property
    def attempt(self) -> int:
        """The number of times that the key was claimed, including this time."""
        return self._claim.attempt

    def key_for(self, provider: str, step: str = "") -> str:
        """Return an idempotency key for a provider, such as a payment service that accepts one.

        It is the same in every attempt that may have reached the provider: after a crash, a takeover, or an attempt
        that ended without a known result. It changes when the provider has certainly not acted on it: after an attempt
        that ended in `NotDone`, unless an attempt before that had no known end, and after a verdict of
        `not_committed`. In a compensatable effect, every attempt has its own. It does not reveal the key of the claim.

        Args:
            provider: The name of the provider. Each provider gets other keys.
            step: The name of the request, if the effect sends several to the provider.

        Returns:
            A UUID of 36 characters.

        Raises:
            InvalidOption: If a name is not a text, or the claim was begun with a secret that is not in `secrets`.
        """
        for name, text in (("provider", provider), ("step", step)):
            if not isinstance(text, str):
                raise errors.InvalidOption(f"{name} must be a text, not {text!r}")
        return key_for(self._ledger, self._claim.entry, self._terms.effect, self.attempt, provider, step)

    @property
    def recovered(self) -> Any:
        """The last recovery point of an earlier attempt, or None. It shows where to continue."""
        return self._claim.entry.recovery_point

    def recovery_point(self, value: object) -> Awaitable[None]:
        """Record what a later attempt must know, such as the id that a provider gave to a request.

        The value survives a crash, a failure and a doubt. The next attempt reads it as `recovered`, and a reconcile
        hook as `entry.recovery_point`. In an `async def`, await the result. In a `def`, the value is stored when the
        call returns.

        Args:
            value: JSON of at most 16 KiB: None, a bool, a number, a text, a list, or a dict with texts as keys. It
                replaces the value before.

        Returns:
            An awaitable. After it, or after the call in blocking code, the value is durable.

        Raises:
            InvalidOption: If the value is not JSON, or is too large.
            ClaimLost: If the claim was taken over. Stop: another attempt runs.
            InsideBoundTransaction: If the claim is bound to a transaction that is open.
            StoreUnavailable: If the store did not respond; the value may have been stored.
        """
        if self.bound is not None and self.bound.open:
            refuse_bound()
        return self._points.record(value, blocks=self.called_on is running_loop())

    @overload
    def bind(self, connection: AsyncConnection) -> Bound[Awaitable[None]]: ...
    @overload
    def bind(self, connection: SyncConnection) -> Bound[None]: ...
    @overload
    def bind(self, connection: object) -> Bound[Any]: ...
    def bind(self, connection: object) -> Bound[Any]:
        """Bind the claim to the caller's own transaction, so that effect and outcome commit together.

        Binding locks the entry and stops its renewal. On an async connection, await the result.

        Args:
            connection: A connection to the ledger's own database: of `sqlite3`, psycopg or asyncpg, an SQLAlchemy
                Connection, Session, AsyncConnection or AsyncSession, or Django's `connection` in an atomic block.

        Returns:
            The bound claim. Call its `settle` before the transaction commits.

        Raises:
            InvalidOption: If the store or the connection does not support binding, or no transaction is open.
            ClaimLost: If the claim was taken over, or the connection is to another database.
            TransactionConflict: If the transaction cannot see the claim.
            StoreUnavailable: If a statement fails.
        """
        self.bound = Bound.to(
            dispatcher_of(self._ledger).store,
            self._claim.entry,
            connection,
            retain_microseconds(self._ledger, self._terms.retain_seconds),
            self._terms.max_result_bytes,
            self.suspend,
            self._terms.refuse,
        )
        return self.bound

    def suspend(self) -> None:
        """Stop renewing the claim."""
        if self.renewal is not None:
            stop_renewal(self._ledger, self.renewal)


def called(claim: CurrentClaim, effect: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap the effect, so that it is known which code runs as a plain function and which may await."""

    def call() -> Any:
        claim.called_on = running_loop()
        try:
            return effect()
        finally:
            claim.called_on = None

    return call


running: ContextVar[CurrentClaim | None] = ContextVar("onceward_claim", default=None)


def current_claim() -> CurrentClaim:
    """Return the claim of the effect that is running in this task or thread.

    Returns:
        The current claim.

    Raises:
        InvalidOption: If no effect is running here.
    """
    claim = running.get()
    if claim is None:
        raise errors.InvalidOption("current_claim() must be called inside an effect")
    return claim
