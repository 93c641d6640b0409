"""Run an effect once for its key: claim it, renew the claim, settle. All other callers get the recorded outcome."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, assert_never, overload

from onceward import errors
from onceward.core.claim import Busy, Claim, Entry, Expired, InDoubt, Mismatch, Ref, Replay, Status
from onceward.core.key import check_built_key, shown
from onceward.core.log_event import log_event
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, Outcome, cut, pack, unpack
from onceward.core.verdict import Committed, NotCommitted, Open, Verdict
from onceward.ledger.internals import dispatcher_of, key_for, read_ref, retain_microseconds, start_renewal, stop_renewal
from onceward.ledger.recovery import RecoveryPoints
from onceward.ledger.terms import Effect, Terms, check_effect
from onceward.ledger.transaction import AsyncConnection, Bound, SyncConnection, forget_bound, inside_bound, refuse_bound
from onceward.store.dispatch.future import driven, running_loop
from onceward.store.dispatch.renewal import POLL_SECONDS_MAX, POLL_SECONDS_MIN

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger
    from onceward.store.dispatch.renewal import Renewal

logger = logging.getLogger("onceward.run")

# The scope of plain calls. Other layers use other scopes.
SCOPE = "call"
UNDO_SCOPE = "undo"


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
            connection: A connection to the ledger's own database: of `sqlite3` or psycopg, or an SQLAlchemy
                Connection, Session, AsyncConnection or AsyncSession.

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

    def calling(self, effect: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the effect, so that it is known which code runs as a plain function and which may await."""

        def call() -> Any:
            self.called_on = running_loop()
            try:
                return effect()
            finally:
                self.called_on = None

        return call

    def suspend(self) -> None:
        """Stop renewing the claim."""
        if self.renewal is not None:
            stop_renewal(self._ledger, self.renewal)


_running: ContextVar[CurrentClaim | None] = ContextVar("onceward_claim", default=None)


def current_claim() -> CurrentClaim:
    """Return the claim of the effect that is running in this task or thread.

    Returns:
        The current claim.

    Raises:
        InvalidOption: If no effect is running here.
    """
    claim = _running.get()
    if claim is None:
        raise errors.InvalidOption("current_claim() must be called inside an effect")
    return claim


async def run(
    ledger: Ledger,
    key: str,
    effect: Callable[[], Any],
    *,
    fingerprint: object,
    terms: Terms,
    scope: str = SCOPE,
) -> Any:
    """Return the value of the effect, from running it now or as it was recorded."""
    check_effect(effect)
    check_built_key(key)
    dispatcher = dispatcher_of(ledger)
    wait_seconds = ledger.wait_seconds if terms.wait_seconds is None else terms.wait_seconds
    deadline = dispatcher.monotonic() + wait_seconds
    pause = POLL_SECONDS_MIN
    while True:
        found = await ledger.begin(
            scope,
            key,
            fingerprint,
            repeatable=terms.repeatable,
            lease_seconds=terms.lease_seconds,
            retain_seconds=terms.retain_seconds,
        )
        remaining = deadline - dispatcher.monotonic()
        match found:
            case Claim():
                return await _perform(ledger, found, key, effect, terms)
            case Replay(entry):
                body = await ledger.body(entry)
                if body is not None or not entry.outcome.chunks:
                    return unpack(body, terms.returns)
                # The chunks were purged between two reads, so the outcome has expired. Begin again.
            case Mismatch():
                raise errors.KeyReused(f"the key {shown(key)!r} was already used with different arguments")
            case Expired():
                raise _expired(key)
            case InDoubt(entry):
                verdict = await _reconcile(terms, entry)
                if not await _resolve(ledger, scope, key, entry, verdict, terms):
                    if verdict is not Open.PENDING or remaining <= 0:
                        raise errors.InDoubt(
                            f"it is unknown whether the effect of {shown(key)!r} happened (attempt {entry.attempt},"
                            f" version {entry.version}); resolve it with a reconcile hook or by hand",
                            entry.version,
                        )
                    await dispatcher.sleep(min(pause, remaining))
                    pause = min(pause * 2, POLL_SECONDS_MAX)
            case Busy(entry, retry_after, locked):
                if remaining <= 0:
                    raise errors.Busy(
                        f"another caller still holds the key {shown(key)!r} after a wait of {wait_seconds:g} s",
                        retry_after / 1_000_000,
                    )
                if locked:
                    await dispatcher.sleep(min(pause, remaining))
                    pause = min(pause * 2, POLL_SECONDS_MAX)
                else:
                    with contextlib.suppress(errors.StoreUnavailable):  # if it lasts, the next begin raises it
                        await ledger.wait(entry, remaining)
            case _:
                assert_never(found)


async def _perform(ledger: Ledger, claim: Claim, key: str, effect: Callable[[], Any], terms: Terms) -> Any:
    current = CurrentClaim(ledger, claim, key, terms)
    current.renewal = start_renewal(ledger, claim, terms.lease_seconds, terms.retain_seconds, terms.max_run_seconds)
    try:
        if claim.took_over and terms.undo is not None:
            await _undo(ledger, claim, claim.attempt - 1, terms)
            if not await ledger.renew(claim, terms.lease_seconds):
                # The undo took too long, and another holder has the claim now. That holder runs the effect.
                return await _recorded_value(ledger, claim, terms)
        return await _execute(ledger, claim, current, effect, terms)
    finally:
        current.suspend()
        forget_bound()


async def _execute(ledger: Ledger, claim: Claim, current: CurrentClaim, effect: Callable[[], Any], terms: Terms) -> Any:
    token = _running.set(current)
    try:
        value = await _call(current.calling(effect))
    except GeneratorExit:
        # The coroutine is being closed, so nothing can be awaited any more. The claim will lapse.
        raise
    except BaseException as error:
        _running.reset(token)
        recorded = await _after_exception(ledger, claim, current, error, terms)
        if recorded is None:
            raise
        return await _value_of(ledger, recorded, terms)
    _running.reset(token)
    return await _finish(ledger, claim, current, value, terms)


async def _finish(ledger: Ledger, claim: Claim, current: CurrentClaim, value: object, terms: Terms) -> object:
    """Record the value of the effect, or check that its bound transaction has recorded it."""
    bound = current.bound
    if bound is not None and bound.settled:
        if not bound.open:
            entry = await read_ref(ledger, claim.entry.ref)
            if entry is None or entry.version != claim.version or entry.status is not Status.COMPLETED:
                # The bound part of the effect did not happen. An irreversible effect may have done more than that.
                note = "the bound transaction was rolled back"
                if terms.repeatable:
                    await ledger.fail(claim, note)
                    raise errors.TransactionConflict(f"{note}, so none of its changes were made; call again")
                await ledger.doubt(claim, note)
                raise errors.InDoubt(
                    f"{note}, and it is unknown what else the effect of {shown(claim.entry.key)!r} did; resolve it with"
                    " a reconcile hook or by hand; if the transaction is all it does, declare it 'idempotent'",
                    claim.version,
                )
        return bound.value
    if bound is not None:
        log_event(
            logger.error,
            "bound_transaction_not_settled",
            key=shown(claim.entry.key),
            hint="call settle() on the bound claim before the commit; this outcome is settled outside the transaction",
        )
    try:
        outcome = await _storable_outcome(ledger, claim, value, terms)
        is_settled = await _settle(ledger, claim, outcome, terms)
    except errors.StoreUnavailable as error:
        then = "its key may run again" if terms.repeatable else "its key is in doubt"
        error.add_note(
            f"onceward: the effect has run, but its result could not be recorded; when its lease ends, {then}"
        )
        raise
    if is_settled:
        return value
    log_event(
        logger.warning,
        "late_result_discarded",
        key=shown(claim.entry.key),
        hint="another holder took over the claim, and its outcome counts; a longer lease prevents that",
    )
    return await _recorded_value(ledger, claim, terms)


def _settle(ledger: Ledger, claim: Claim, outcome: Outcome, terms: Terms) -> Coroutine[Any, Any, bool]:
    if not terms.refuse:
        return ledger.settle(claim, outcome, terms.retain_seconds)
    return ledger.settle(
        claim, outcome, terms.retain_seconds, refuse_seconds=terms.refuse_seconds, retain_ever=terms.retain_ever
    )


async def _storable_outcome(ledger: Ledger, claim: Claim, value: object, terms: Terms) -> Outcome:
    """Return the outcome to record. If the result cannot be stored, the key is settled without it."""
    body = pack(value, terms.max_result_bytes)
    if body is None:
        log_event(
            logger.warning,
            "result_not_stored",
            key=shown(claim.entry.key),
            result_type=type(value).__qualname__,
            hint="the key is settled without its result; return a smaller value, or one of a supported type",
        )
        return NOTHING
    if len(body) <= INLINE_BYTES_MAX:
        return Outcome(body=body)
    chunks = cut(body)
    try:
        await ledger.append(claim, 1, chunks)
    except errors.ClaimLost:
        # If the entry is in doubt by now, a late receipt without a value still ends that. If another holder took over,
        # the settle is refused.
        return NOTHING
    except (errors.OncewardError, GeneratorExit):
        raise
    except BaseException:
        # Cancelled or interrupted: the value is lost, but the fact that the effect happened is recorded.
        await _settle(ledger, claim, NOTHING, terms)
        raise
    return Outcome(chunks=len(chunks))


async def _recorded_value(ledger: Ledger, claim: Claim, terms: Terms) -> object:
    """Return the recorded outcome to a holder that lost its claim; its own result never counts."""
    wait_seconds = ledger.wait_seconds if terms.wait_seconds is None else terms.wait_seconds
    deadline = dispatcher_of(ledger).monotonic() + wait_seconds
    ref: Ref = claim.entry.ref
    while True:
        entry = await read_ref(ledger, ref)
        if entry is None or entry.status is Status.FAILED or entry.fingerprint != claim.entry.fingerprint:
            # With another fingerprint, the retention is over and the key belongs to another call by now.
            raise errors.ClaimLost(
                f"the claim on {shown(ref.key)!r} was taken over and that attempt failed; call again"
            )
        if entry.status is Status.COMPLETED:
            return await _value_of(ledger, entry, terms)
        if entry.status is Status.IN_DOUBT:
            raise errors.InDoubt(f"the claim on {shown(ref.key)!r} was taken over and is in doubt", entry.version)
        remaining = deadline - dispatcher_of(ledger).monotonic()
        if remaining <= 0:
            raise errors.Busy(f"the claim on {shown(ref.key)!r} was taken over, and its new holder is still running")
        seen = await ledger.wait(entry, remaining)
        if seen.entry is not None and seen.entry.status is Status.IN_PROGRESS:
            raise errors.ClaimLost(f"the claim on {shown(ref.key)!r} was taken over and abandoned; call again")


def _expired(key: str) -> errors.Expired:
    return errors.Expired(
        f"the effect of {shown(key)!r} has happened, and its result is no longer kept; it will not run again; use a new"
        " key for new work"
    )


async def _value_of(ledger: Ledger, entry: Entry, terms: Terms) -> object:
    body = await ledger.body(entry)
    if body is None and entry.refuse_until is not None and entry.expires_at == entry.refuse_until:
        raise _expired(entry.key)
    if body is None and entry.outcome.chunks:
        raise errors.ClaimLost(f"the outcome of {shown(entry.key)!r} expired while it was being read; call again")
    return unpack(body, terms.returns)


async def _after_exception(
    ledger: Ledger, claim: Claim, current: CurrentClaim, error: BaseException, terms: Terms
) -> Entry | None:
    """Record what an exception means for the claim; return the entry if the effect was recorded nevertheless."""
    bound = current.bound
    if inside_bound() or (bound is not None and bound.open):
        return None  # The transaction decides. If it is rolled back, the lease lapses and the key may run again.
    current.suspend()
    note = errors.described(error)
    try:
        if bound is not None and bound.settled and not await ledger.renew(claim, terms.lease_seconds):
            # COMMIT raised but may have committed: only its result was lost. The refused renewal is proof that the
            # claim has ended, because it waits for the transaction's lock.
            entry = await read_ref(ledger, claim.entry.ref)
            ours = entry is not None and (entry.version, entry.status) == (claim.version, Status.COMPLETED)
            return entry if ours else None
        if terms.effect is Effect.COMPENSATABLE and not _did_nothing(error, terms):
            await _undo(ledger, claim, claim.attempt, terms)
            await ledger.fail(claim, note, terms.retain_seconds, not_done=claim.earlier_did_nothing)
        elif terms.effect is Effect.IRREVERSIBLE and not _did_nothing(error, terms):
            if await ledger.doubt(claim, note):
                error.add_note("onceward: the effect may have happened, so its key is now in doubt")
        else:
            not_done = _did_nothing(error, terms) and claim.earlier_did_nothing
            await ledger.fail(claim, note, terms.retain_seconds, not_done=not_done)
    except errors.StoreUnavailable as unavailable:
        error.add_note(f"onceward: this failure could not be recorded ({unavailable}); the claim will lapse")
    return None


def _did_nothing(error: BaseException, terms: Terms) -> bool:
    return isinstance(error, (errors.NotDone, *terms.not_done))


async def _undo(ledger: Ledger, claim: Claim, attempt: int, terms: Terms) -> None:
    """Undo one attempt, once: the undo is itself a recorded effect.

    An undo that fails leaves the claim in doubt. An undo that is interrupted or cannot reach the store lets the claim
    lapse, and the next holder undoes first.
    """
    undo = terms.undo
    if undo is None:
        return
    entry = claim.entry
    digest = hashlib.sha256(f"{entry.scope}\x00{entry.key}".encode()).hexdigest()[:32]
    undo_terms = Terms(
        effect=Effect.IDEMPOTENT,
        lease_seconds=terms.lease_seconds,
        retain_seconds=terms.retain_seconds,
        max_run_seconds=terms.max_run_seconds,
    )
    key = f"{digest}:{entry.created_at}:{attempt}"

    def without_result() -> Any:
        result: Any = undo()
        return _await_and_discard(result) if hasattr(type(result), "__await__") else None

    try:
        await run(ledger, key, without_result, fingerprint=None, terms=undo_terms, scope=UNDO_SCOPE)
    except (errors.StoreUnavailable, errors.Busy, errors.ClaimLost):
        raise
    except Exception as failure:
        await ledger.doubt(claim, f"undo failed: {errors.described(failure)}")
        raise


async def _await_and_discard(result: Awaitable[object]) -> None:
    await result


async def _reconcile(terms: Terms, entry: Entry) -> Verdict:
    if terms.reconcile is None:
        return Open.UNKNOWN
    verdict = await _call(lambda: terms.reconcile(entry) if terms.reconcile else Open.UNKNOWN)
    if not isinstance(verdict, Committed | NotCommitted | Open):
        raise errors.InvalidOption(
            f"a reconcile hook must return committed(value), not_committed(reason), pending or unknown, not {verdict!r}"
        )
    return verdict


async def _resolve(ledger: Ledger, scope: str, key: str, entry: Entry, verdict: Verdict, terms: Terms) -> bool:
    """Act on a verdict; return whether the caller should begin again, even if another process resolved the doubt."""
    if isinstance(verdict, Open):
        return False
    word = "committed" if isinstance(verdict, Committed) else f"not committed, {verdict.reason.value}"
    await ledger.resolve(
        scope, key, entry.version, verdict, note=f"reconciled: {word}", retain_seconds=terms.retain_seconds,
        refuse_seconds=terms.refuse_seconds if terms.after_retention == "refuse" else None,
        retain_ever=terms.retain_ever,
    )  # fmt: skip
    return True


async def _call(function: Callable[[], Any]) -> Any:
    """Call a `def` or `async def`. A `def` runs on the calling thread; the claim is renewed even while it blocks."""
    result = function()
    # Check only the type: `__class__` of a proxy may raise, and then a finished effect would count as failed.
    if not hasattr(type(result), "__await__"):
        return result
    if not driven():
        return await result
    if running_loop() is not None:
        if inspect.iscoroutine(result):
            result.close()
        raise errors.NotDone(
            "an async effect cannot run in a blocking call on the thread of an event loop; await the call instead"
        )

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited())
