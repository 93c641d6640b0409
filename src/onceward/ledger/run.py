"""Run an effect once for its key: claim it, renew the claim, settle. All other callers get the recorded outcome."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, assert_never

from onceward import errors
from onceward.core.claim import Busy, Claim, Entry, Expired, InDoubt, Mismatch, Ref, Replay, Status
from onceward.core.key import check_built_key, short_key
from onceward.core.log_event import log_event
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, Outcome, cut, pack, unpack
from onceward.core.verdict import Committed, NotCommitted, Open, Verdict
from onceward.ledger.current_claim import CurrentClaim, called, current_claim, running
from onceward.ledger.doubts import at_store_time
from onceward.ledger.internals import dispatcher_of, read_ref, start_renewal
from onceward.ledger.terms import Effect, Terms, check_effect
from onceward.ledger.transaction import forget_bound, inside_bound
from onceward.store.dispatch.future import driven, running_loop
from onceward.store.dispatch.renewal import POLL_SECONDS_MAX, POLL_SECONDS_MIN

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger

__all__ = ["CurrentClaim", "current_claim", "run"]

logger = logging.getLogger("onceward.run")

# The scope of plain calls. Other layers use other scopes.
SCOPE = "call"
UNDO_SCOPE = "undo"


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
                raise errors.KeyReused(f"the key {short_key(key)!r} was already used with different arguments")
            case Expired():
                raise _expired(key)
            case InDoubt(entry, now):
                with at_store_time(now):
                    verdict = await _reconcile(terms, entry)
                if not await _resolve(ledger, scope, key, entry, verdict, terms):
                    if verdict is not Open.PENDING or remaining <= 0:
                        raise errors.InDoubt(
                            f"it is unknown whether the effect of {short_key(key)!r} happened (attempt {entry.attempt},"
                            f" version {entry.version}); resolve it with a reconcile hook or by hand",
                            entry.version,
                        )
                    await dispatcher.sleep(min(pause, remaining))
                    pause = min(pause * 2, POLL_SECONDS_MAX)
            case Busy(entry, retry_after, locked):
                if remaining <= 0:
                    raise errors.Busy(
                        f"another caller still holds the key {short_key(key)!r} after a wait of {wait_seconds:g} s",
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
    token = running.set(current)
    try:
        value = await call_here(called(current, effect))
    except GeneratorExit:
        # The coroutine is being closed, so nothing can be awaited any more. The claim will lapse.
        raise
    except BaseException as error:
        running.reset(token)
        recorded = await _after_exception(ledger, claim, current, error, terms)
        if recorded is None:
            raise
        return await _value_of(ledger, recorded, terms)
    running.reset(token)
    return await _finish(ledger, claim, current, value, terms)


async def _finish(ledger: Ledger, claim: Claim, current: CurrentClaim, value: object, terms: Terms) -> object:
    """Record the value of the effect, or check that its bound transaction has recorded it."""
    bound = current.bound
    if bound is not None and bound.settled:
        if bound.undone:
            # Nothing can be written here while the transaction is open. The lease lapses.
            note = "the outcome was rolled back to a savepoint of the bound transaction"
            if terms.repeatable:
                raise errors.TransactionConflict(f"{note}; roll the transaction back and call again")
            raise errors.InDoubt(f"{note}; it is unknown what else the effect did", claim.version)
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
                    f"{note}, and it is unknown what else the effect of {short_key(claim.entry.key)!r} did; resolve it with"
                    " a reconcile hook or by hand; if the transaction is all it does, declare it 'idempotent'",
                    claim.version,
                )
        return bound.value
    if bound is not None:
        log_event(
            logger.error,
            "bound_transaction_not_settled",
            key=short_key(claim.entry.key),
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
        key=short_key(claim.entry.key),
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
            key=short_key(claim.entry.key),
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
                f"the claim on {short_key(ref.key)!r} was taken over and that attempt failed; call again"
            )
        if entry.status is Status.COMPLETED:
            return await _value_of(ledger, entry, terms)
        if entry.status is Status.IN_DOUBT:
            raise errors.InDoubt(f"the claim on {short_key(ref.key)!r} was taken over and is in doubt", entry.version)
        remaining = deadline - dispatcher_of(ledger).monotonic()
        if remaining <= 0:
            raise errors.Busy(
                f"the claim on {short_key(ref.key)!r} was taken over, and its new holder is still running"
            )
        seen = await ledger.wait(entry, remaining)
        if seen.entry is not None and seen.entry.status is Status.IN_PROGRESS:
            raise errors.ClaimLost(f"the claim on {short_key(ref.key)!r} was taken over and abandoned; call again")


def _expired(key: str) -> errors.Expired:
    return errors.Expired(
        f"the effect of {short_key(key)!r} has happened, and its result is no longer kept; it will not run again; use a new"
        " key for new work"
    )


async def _value_of(ledger: Ledger, entry: Entry, terms: Terms) -> object:
    body = await ledger.body(entry)
    if body is None and entry.refuse_until is not None and entry.expires_at == entry.refuse_until:
        raise _expired(entry.key)
    if body is None and entry.outcome.chunks:
        raise errors.ClaimLost(f"the outcome of {short_key(entry.key)!r} expired while it was being read; call again")
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
    verdict = await call_here(lambda: terms.reconcile(entry) if terms.reconcile else Open.UNKNOWN)
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


async def call_here(function: Callable[[], Any]) -> Any:
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
