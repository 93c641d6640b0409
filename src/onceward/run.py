"""Run an effect once for its key: claim, keep the claim alive, settle. Everyone else gets what the winner got."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, assert_never, overload

from onceward import errors
from onceward.bound import AsyncConnection, Bound, SyncConnection, forget_bound, inside_bound
from onceward.core.claim import Busy, Claim, Entry, InDoubt, Mismatch, Ref, Replay, Status
from onceward.core.key import check_built_key, shown
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, Outcome, cut, pack, unpack
from onceward.core.verdict import Committed, NotCommitted, Open, Verdict
from onceward.store.pending import driven, running_loop
from onceward.store.upkeep import POLL_SECONDS_MAX, POLL_SECONDS_MIN
from onceward.terms import Effect, Terms, check_effect

if TYPE_CHECKING:
    from onceward.ledger import Ledger
    from onceward.store.upkeep import Keep

logger = logging.getLogger("onceward.run")

# The ledger scope of plain calls; layers above have scopes of their own.
SCOPE = "call"
UNDO_SCOPE = "undo"


class CurrentClaim:
    """What an effect may know of its own claim: pass `version` (it only grows) or `key` to systems that can fence."""

    def __init__(self, ledger: Ledger, claim: Claim, key: str, terms: Terms) -> None:
        self._ledger = ledger
        self._claim = claim
        self._terms = terms
        self.key = key
        self.kept: Keep | None = None
        self.bound: Bound[Any] | None = None

    @property
    def version(self) -> int:
        """The fencing token."""
        return self._claim.version

    @property
    def attempt(self) -> int:
        return self._claim.attempt

    @overload
    def bind(self, connection: AsyncConnection) -> Bound[Awaitable[None]]: ...
    @overload
    def bind(self, connection: SyncConnection) -> Bound[None]: ...
    @overload
    def bind(self, connection: object) -> Bound[Any]: ...
    def bind(self, connection: object) -> Bound[Any]:
        """Settle inside the caller's own transaction: exactly once. See `bound.py`."""
        self.bound = Bound.to(
            self._ledger.line.store,
            self._claim.entry,
            connection,
            self._ledger.retain(self._terms.retain_seconds),
            self._terms.max_result_bytes,
            self.suspend,
        )
        return self.bound

    def suspend(self) -> None:
        if self.kept is not None:
            self._ledger.drop(self.kept)


_running: ContextVar[CurrentClaim | None] = ContextVar("onceward_claim", default=None)


def current_claim() -> CurrentClaim:
    """The claim of the effect that is running here."""
    claim = _running.get()
    if claim is None:
        raise errors.InvalidOption("current_claim() is for use inside an effect")
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
    """The effect's value: from running it now, or as it was recorded when it ran."""
    check_effect(effect)
    check_built_key(key)
    line = ledger.line
    wait_seconds = ledger.wait_seconds if terms.wait_seconds is None else terms.wait_seconds
    deadline = line.monotonic() + wait_seconds
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
        remaining = deadline - line.monotonic()
        match found:
            case Claim():
                return await _perform(ledger, found, key, effect, terms)
            case Replay(entry):
                body = await ledger.body(entry)
                if body is not None or not entry.outcome.chunks:
                    return unpack(body, terms.returns)
                # Its chunks were purged between two looks: the outcome has expired.
            case Mismatch():
                raise errors.KeyReused(f"the key {shown(key)!r} was already used with other arguments")
            case InDoubt(entry):
                verdict = await _ask(terms, entry)
                if not await _resolve(ledger, scope, key, entry, verdict, terms):
                    if verdict is not Open.PENDING or remaining <= 0:
                        raise errors.InDoubt(
                            f"nobody knows whether the effect of {shown(key)!r} happened (attempt {entry.attempt},"
                            f" version {entry.version}); resolve it with a reconcile hook or by hand",
                            entry.version,
                        )
                    await line.sleep(min(pause, remaining))
                    pause = min(pause * 2, POLL_SECONDS_MAX)
            case Busy(entry, retry_after, locked):
                if remaining <= 0:
                    raise errors.Busy(
                        f"the key {shown(key)!r} is being worked on; waited {wait_seconds:g} s", retry_after / 1_000_000
                    )
                if locked:
                    await line.sleep(min(pause, remaining))
                    pause = min(pause * 2, POLL_SECONDS_MAX)
                else:
                    with contextlib.suppress(errors.StoreUnavailable):  # the next begin says so if it lasts
                        await ledger.wait(entry, remaining)
            case _:
                assert_never(found)


async def _perform(ledger: Ledger, claim: Claim, key: str, effect: Callable[[], Any], terms: Terms) -> Any:
    current = CurrentClaim(ledger, claim, key, terms)
    current.kept = ledger.keep(claim, terms.lease_seconds, terms.retain_seconds, terms.max_run_seconds)
    try:
        if claim.took_over and terms.undo is not None:
            await _undo(ledger, claim, claim.attempt - 1, terms)
            if not await ledger.renew(claim, terms.lease_seconds):
                # The undo took too long and the claim is another's by now: so is the effect.
                return await _outcome_of_winner(ledger, claim, terms)
        return await _execute(ledger, claim, current, effect, terms)
    finally:
        current.suspend()
        forget_bound()


async def _execute(ledger: Ledger, claim: Claim, current: CurrentClaim, effect: Callable[[], Any], terms: Terms) -> Any:
    token = _running.set(current)
    try:
        value = await _call(effect)
    except GeneratorExit:
        # The coroutine itself is being thrown away, so nothing can be awaited any more: the claim will lapse.
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
    """Record what the effect returned, or find it recorded by its bound transaction."""
    bound = current.bound
    if bound is not None and bound.settled:
        if not bound.open:
            entry = await ledger.look(claim.entry.ref)
            if entry is None or entry.version != claim.version or entry.status is not Status.COMPLETED:
                # What was bound did not happen; of an irreversible effect there may be more than what was bound.
                note = "the bound transaction was rolled back"
                if terms.repeatable:
                    await ledger.fail(claim, note)
                    raise errors.TransactionConflict(f"{note}, so that nothing of it happened; call again")
                await ledger.doubt(claim, note)
                raise errors.InDoubt(
                    f"{note}, and nobody knows what else the effect of {shown(claim.entry.key)!r} did; resolve it with a"
                    " reconcile hook or by hand, or declare an effect that does no more 'idempotent'",
                    claim.version,
                )
        return bound.value
    if bound is not None:
        logger.error("a transaction was bound to %r and never settled in; settling outside it", shown(claim.entry.key))
    try:
        outcome = await _keep(ledger, claim, value, terms)
        is_settled = await ledger.settle(claim, outcome, terms.retain_seconds)
    except errors.StoreUnavailable as error:
        then = "its key may run again" if terms.repeatable else "its key is in doubt"
        error.add_note(f"onceward: the effect has run; what is missing is its record, and when its lease ends {then}")
        raise
    if is_settled:
        return value
    logger.warning(
        "a result of %r came too late: the claim was lost, and the outcome is another's", shown(claim.entry.key)
    )
    return await _outcome_of_winner(ledger, claim, terms)


async def _keep(ledger: Ledger, claim: Claim, value: object, terms: Terms) -> Outcome:
    """Two-part commit: that it happened is recorded even when its result cannot be."""
    body = pack(value, terms.max_result_bytes)
    if body is None:
        logger.warning(
            "the result of %r cannot be kept (type %s); the key is settled without it",
            shown(claim.entry.key),
            type(value).__qualname__,
        )
        return NOTHING
    if len(body) <= INLINE_BYTES_MAX:
        return Outcome(body=body)
    chunks = cut(body)
    try:
        await ledger.append(claim, 1, chunks)
    except errors.ClaimLost:
        # If it is in doubt by now, a late receipt without its value still ends that; if it is taken over, nothing does.
        return NOTHING
    except (errors.OncewardError, GeneratorExit):
        raise
    except BaseException:
        # Cancelled or interrupted in between: the value is lost, but not that it happened.
        await ledger.settle(claim, NOTHING, terms.retain_seconds)
        raise
    return Outcome(chunks=len(chunks))


async def _outcome_of_winner(ledger: Ledger, claim: Claim, terms: Terms) -> object:
    """A holder that lost its claim gives the recorded outcome, never its own."""
    wait_seconds = ledger.wait_seconds if terms.wait_seconds is None else terms.wait_seconds
    deadline = ledger.line.monotonic() + wait_seconds
    ref: Ref = claim.entry.ref
    while True:
        entry = await ledger.look(ref)
        if entry is None or entry.status is Status.FAILED or entry.fingerprint != claim.entry.fingerprint:
            # The last: its time is over, and the key belongs to another call by now.
            raise errors.ClaimLost(
                f"the claim on {shown(ref.key)!r} was taken over and that attempt failed; call again"
            )
        if entry.status is Status.COMPLETED:
            return await _value_of(ledger, entry, terms)
        if entry.status is Status.IN_DOUBT:
            raise errors.InDoubt(f"the claim on {shown(ref.key)!r} was taken over and is in doubt", entry.version)
        remaining = deadline - ledger.line.monotonic()
        if remaining <= 0:
            raise errors.Busy(f"the claim on {shown(ref.key)!r} was taken over; its new holder is still at work")
        seen = await ledger.wait(entry, remaining)
        if seen.entry is not None and seen.entry.status is Status.IN_PROGRESS:
            raise errors.ClaimLost(f"the claim on {shown(ref.key)!r} was taken over and abandoned; call again")


async def _value_of(ledger: Ledger, entry: Entry, terms: Terms) -> object:
    body = await ledger.body(entry)
    if body is None and entry.outcome.chunks:
        raise errors.ClaimLost(f"the outcome of {shown(entry.key)!r} expired while it was being read; call again")
    return unpack(body, terms.returns)


async def _after_exception(
    ledger: Ledger, claim: Claim, current: CurrentClaim, error: BaseException, terms: Terms
) -> Entry | None:
    """Record what an exception means. Returns the entry when the effect turns out to be recorded all the same."""
    bound = current.bound
    if inside_bound() or (bound is not None and bound.open):
        return None  # The transaction decides: rolled back, the lease lapses and the key may run again.
    current.suspend()
    note = errors.described(error)
    try:
        if bound is not None and bound.settled and not await ledger.renew(claim, terms.lease_seconds):
            # COMMIT raised, and did commit: its answer was lost, the outcome was not. A renewal tells for sure,
            # because it waits for the transaction's lock.
            entry = await ledger.look(claim.entry.ref)
            ours = entry is not None and (entry.version, entry.status) == (claim.version, Status.COMPLETED)
            return entry if ours else None
        if terms.effect is Effect.COMPENSATABLE and not _did_nothing(error, terms):
            await _undo(ledger, claim, claim.attempt, terms)
            await ledger.fail(claim, note, terms.retain_seconds)
        elif terms.effect is Effect.IRREVERSIBLE and not _did_nothing(error, terms):
            if await ledger.doubt(claim, note):
                error.add_note("onceward: the effect may have happened; its key is now in doubt")
        else:
            await ledger.fail(claim, note, terms.retain_seconds)
    except errors.StoreUnavailable as unavailable:
        error.add_note(f"onceward: this could not be recorded ({unavailable}); the claim will lapse")
    return None


def _did_nothing(error: BaseException, terms: Terms) -> bool:
    return isinstance(error, (errors.NotDone, *terms.not_done))


async def _undo(ledger: Ledger, claim: Claim, attempt: int, terms: Terms) -> None:
    """Undo one attempt, once: the undo is itself a recorded effect.

    One that fails leaves the claim in doubt. One that is interrupted, or cannot reach the store, leaves it to lapse,
    and whoever takes over undoes first.
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
        return _ignored(result) if hasattr(type(result), "__await__") else None

    try:
        await run(ledger, key, without_result, fingerprint=None, terms=undo_terms, scope=UNDO_SCOPE)
    except (errors.StoreUnavailable, errors.Busy, errors.ClaimLost):
        raise
    except Exception as failure:
        await ledger.doubt(claim, f"undo failed: {errors.described(failure)}")
        raise


async def _ignored(result: Awaitable[object]) -> None:
    await result


async def _ask(terms: Terms, entry: Entry) -> Verdict:
    if terms.reconcile is None:
        return Open.UNKNOWN
    verdict = await _call(lambda: terms.reconcile(entry) if terms.reconcile else Open.UNKNOWN)
    if not isinstance(verdict, Committed | NotCommitted | Open):
        raise errors.InvalidOption(
            f"a reconcile hook answers committed(value), not_committed(reason), pending or unknown, not {verdict!r}"
        )
    return verdict


async def _resolve(ledger: Ledger, scope: str, key: str, entry: Entry, verdict: Verdict, terms: Terms) -> bool:
    """Act on a verdict; true when the key should be asked for again, whoever resolved it."""
    if isinstance(verdict, Open):
        return False
    word = "committed" if isinstance(verdict, Committed) else f"not committed, {verdict.reason.value}"
    await ledger.resolve(
        scope, key, entry.version, verdict, note=f"reconciled: {word}", retain_seconds=terms.retain_seconds
    )
    return True


async def _call(function: Callable[[], Any]) -> Any:
    """Call `def` or `async def`. A `def` runs on the calling thread; the claim is renewed even while it blocks."""
    result = function()
    # By its type alone: a proxy's own `__class__` may raise, and then a finished effect would count as failed.
    if not hasattr(type(result), "__await__"):
        return result
    if not driven():
        return await result
    if running_loop() is not None:
        if inspect.iscoroutine(result):
            result.close()
        raise errors.NotDone("an async effect cannot run in a blocking call on an event loop's thread; await the call")

    async def awaited() -> Any:
        return await result

    return asyncio.run(awaited())
