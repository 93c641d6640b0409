"""Execution of one planned call through the ledger, with its outcome as an envelope.

The ledger decides who runs the effect. The gate decides whether it may still run; it is called first inside the effect,
so that a replay does not call it. The outcome is recorded according to the effect class of the tool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from onceward import errors
from onceward.core.claim import Claim, Entry
from onceward.core.verdict import Committed, Verdict
from onceward.ledger import run
from onceward.ledger.blocking import wait
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import Effect, Terms
from onceward.store.dispatch.future import driven
from onceward.tools.call import Call, Gate
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.invocation import Cancellation, arguments_by_name, invoke
from onceward.tools.observer import TOOL_BASED, IdempotencyStatus, Observer
from onceward.tools.receipts import envelope_of, error_text, record_of, status_envelope

T = TypeVar("T")

# The retention of an undo, longer than the life of any turn group: it separates the next generation of a call from the
# undone one.
UNDONE_SECONDS = 90 * 24 * 3600.0


async def execute(
    ledger: Ledger, gate: Gate, call: Call, wait_seconds: float | None = None, observer: Observer | None = None
) -> Envelope:
    """Run the call, or find its outcome. Raises the gate's exceptions, and `StoreUnavailable`."""
    started = time.perf_counter()
    execution = Execution(ledger, call, gate)
    envelope = await execution.run(wait_seconds)
    if execution.in_doubt and call.tool.reconcile is not None:
        # The call failed just now: ask the reconcile hook, which may already know the outcome. This runs nothing.
        envelope = await Execution(ledger, call).run(wait_seconds)
    if observer is not None:
        cached = execution.check is IdempotencyStatus.DUPLICATE_COMPLETED
        seconds = time.perf_counter() - started
        observer.checked(call.key, execution.check.value, cached=cached, seconds=seconds, key_type=TOOL_BASED)
        if execution.in_doubt:
            observer.put_in_doubt(call.key)
    await gate.done(call, envelope)
    return envelope


class NothingRun(errors.NotDone):
    """Raised in place of the effect by an execution that only searches for an outcome."""


@dataclass(slots=True)
class Execution:
    """One run of a call through the ledger. Without a gate the tool does not run: only a recorded outcome is found."""

    ledger: Ledger
    call: Call
    gate: Gate | None = None
    # Exceptions by their source: the ledger and the function may raise the same class.
    raised: BaseException | None = field(default=None, init=False)
    hook_raised: BaseException | None = field(default=None, init=False)
    gate_raised: BaseException | None = field(default=None, init=False)
    ran: bool = field(default=False, init=False)
    undone: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    check: IdempotencyStatus = field(default=IdempotencyStatus.PROCESSING_STARTED, init=False)
    # This run ended, and its effect is unknown.
    in_doubt: bool = field(default=False, init=False)

    async def run(self, wait_seconds: float | None) -> Envelope:
        call = self.call
        try:
            value = await run.run(
                self.ledger,
                call.key,
                on_caller_thread(self._effect),
                fingerprint=call.fingerprint,
                terms=self._terms(wait_seconds),
                scope=call.scope,
            )
        except Exception as error:  # noqa: BLE001  # the tool may raise anything; other errors are raised again
            envelope = await self._envelope_after(error)
        else:
            if not self.ran:
                self.check = IdempotencyStatus.DUPLICATE_COMPLETED
            envelope = envelope_of(call, value, CallStatus.DONE if self.ran else CallStatus.REPLAYED)
        if self.cancelled:
            raise asyncio.CancelledError
        return envelope

    # Functions that the ledger calls.

    async def _effect(self) -> dict[str, Any]:
        if self.gate is None:
            raise NothingRun("the call was not made")
        try:
            await self.gate.fire(self.call)
        except (Exception, asyncio.CancelledError) as error:
            self.gate_raised = error
            raise errors.NotDone("the gate refused the call before its effect began") from error
        self.ran = True
        claim = run.current_claim()
        call = replace(self.call, provider_key=claim.key_for(self.call.tool.name, self.call.fingerprint))
        cancelled = Cancellation()
        try:
            result = await run_function(call, cancelled)
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.cancelled = cancelled.requested
        return record_of(call, result, attempt=claim.attempt, version=claim.version)

    def _terms(self, wait_seconds: float | None) -> Terms:
        tool = self.call.tool
        terms = Terms(
            effect=tool.effect,
            undo=None if tool.undo is None else on_caller_thread(self._undo),
            reconcile=None if tool.reconcile is None else on_caller_thread(self._reconcile),
            not_done=tool.not_done,
            lease_seconds=tool.lease_seconds,
            retain_seconds=self.call.retain_seconds,
            wait_seconds=tool.wait_seconds if wait_seconds is None else wait_seconds,
        )
        return without_expiry(terms) if self.call.ever else terms

    async def _undo(self) -> None:
        """Undo an attempt whose result is unknown, because it raised or its holder disappeared."""
        # The key of an undo in the ledger ends with the number of the attempt.
        attempt = int(run.current_claim().key.rpartition(":")[2])
        call = self.call
        entry = await self.ledger.read(call.scope, call.key) if call.tool.provider_key is not None else None
        if entry is not None:
            call = call.of_attempt(self.ledger, entry, attempt)
        try:
            await call_undo(call, None)
        except BaseException as error:
            self.hook_raised = error
            raise
        self.undone = True

    async def _reconcile(self, entry: Entry) -> Verdict:
        tool = self.call.tool
        if tool.reconcile is None:
            raise AssertionError  # the terms contain this function only if the tool has a hook
        call = self.call.of_attempt(self.ledger, entry, entry.attempt)
        known = {**call.arguments, **_provider_argument(call), "call": call, "entry": entry}
        try:
            verdict: Verdict = await invoke(tool.reconcile, arguments_by_name(tool.reconcile, known, other=entry))
        except BaseException as error:
            self.hook_raised = error
            raise
        if isinstance(verdict, Committed):
            found = record_of(call, verdict.value, attempt=entry.attempt, version=entry.version, reconciled=True)
            return replace(verdict, value=found)
        return verdict

    # Outcomes.

    async def _envelope_after(self, error: Exception) -> Envelope:
        if self.gate_raised is not None:
            await self._free_key()
            raise self.gate_raised
        if error is self.raised:
            return await self._envelope_after_tool_error(error)
        if error is self.hook_raised:
            return self._envelope(CallStatus.UNKNOWN, f"the reconcile or undo hook failed: {error_text(error)}")
        match error:
            case NothingRun():
                await self._free_key()
                return self._envelope(CallStatus.REFUSED, str(error), may_retry=True)
            case errors.KeyReused():
                self.check = IdempotencyStatus.FINGERPRINT_MISMATCH
                return self._envelope(
                    CallStatus.REFUSED,
                    "mismatch: this tool was already called with the same key and other arguments. Repeat those"
                    " arguments to get the result of that call; a new effect needs another key or another group",
                    code=error.code,
                )
            case errors.Busy():
                self.check = IdempotencyStatus.DUPLICATE_PROCESSING
                return self._envelope(CallStatus.IN_PROGRESS, str(error), may_retry=True, code=error.code)
            case errors.InDoubt():
                self.check = IdempotencyStatus.IN_DOUBT
                return self._envelope(CallStatus.UNKNOWN, str(error), code=error.code)
            case errors.Expired():
                self.check = IdempotencyStatus.EXPIRED
                return self._envelope(CallStatus.REPLAYED, str(error), code=error.code)
            case errors.OutcomeNotKept():
                self.check = IdempotencyStatus.DUPLICATE_COMPLETED
                return self._envelope(CallStatus.REPLAYED, str(error), code=error.code)
            case errors.ClaimLost() | errors.TransactionConflict():
                return self._envelope(CallStatus.IN_PROGRESS, str(error), may_retry=True, code=error.code)
            case _:
                raise error

    async def _envelope_after_tool_error(self, error: Exception) -> Envelope:
        """Return the envelope after the function raised. The ledger has already recorded it."""
        tool = self.call.tool
        text = error_text(error)
        if isinstance(error, (errors.NotDone, *tool.not_done)):
            await self._free_key()
            return self._envelope(CallStatus.REFUSED, text, may_retry=True)
        match tool.effect:
            case Effect.IRREVERSIBLE:
                self.in_doubt = True
                return self._envelope(CallStatus.UNKNOWN, text, code=errors.InDoubt.code)
            case Effect.COMPENSATABLE:
                await self._free_key()
                return self._envelope(CallStatus.REFUSED, f"{text}; its effect, if any, was undone", may_retry=True)
            case _:
                return self._envelope(CallStatus.UNKNOWN, text, may_retry=True)

    async def _free_key(self) -> None:
        """Free the key after a call without an effect, so that a call with other arguments may use it.

        An undone call ends its generation, so that the next call is not mistaken for it. An idempotent tool may have
        had its effect in an earlier attempt, so its key is freed only if this was the first one. Tools of the other
        classes do not run again before it is known that their earlier attempts had no effect.
        """
        call = self.call
        if self.undone:
            await undo_generation(self.ledger, call, _nothing_more)
            return
        found = await self.ledger.begin(
            call.scope,
            call.key,
            call.fingerprint,
            repeatable=call.effect is not Effect.IRREVERSIBLE,
            retain_seconds=call.retain_seconds,
        )
        if not isinstance(found, Claim):
            return
        second = 2  # the claim that frees the key is an attempt, too: the second, if the tool ran once
        if call.effect is Effect.IDEMPOTENT and found.attempt > second:
            not_done = found.earlier_did_nothing
            await self.ledger.fail(found, "the last attempt had no effect", call.retain_seconds, not_done=not_done)
        else:
            await self.ledger.release(found)

    def _envelope(self, status: CallStatus, detail: str, *, may_retry: bool = False, code: str = "") -> Envelope:
        return status_envelope(self.call, status, detail, may_retry=may_retry, code=code)


async def undo_generation(
    ledger: Ledger, call: Call, undo: Callable[[], Awaitable[None]], wait_seconds: float | None = None
) -> dict[str, Any]:
    """Undo a generation once. From then on the same call belongs to the next generation."""

    async def effect() -> dict[str, Any]:
        await undo()
        return {"result": None, "receipt": {"tool": call.tool.name, "key": call.key, "undone": True}}

    terms = Terms(effect=Effect.IDEMPOTENT, retain_seconds=UNDONE_SECONDS, wait_seconds=wait_seconds)
    if call.ever:
        terms = without_expiry(terms)
    value: dict[str, Any] = await run.run(
        ledger, call.key, on_caller_thread(effect), fingerprint=None, terms=terms, scope=call.undo_scope
    )
    return value


def on_caller_thread(function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Any]:
    """Return a function for the ledger to call. In a blocking call it is a plain one, which runs on this thread."""
    return (lambda *args: wait(function(*args))) if driven() else function


def without_expiry(terms: Terms) -> Terms:
    """Return the terms of a tool with once="ever": its entry is never purged, only its body after the retention."""
    return replace(terms, retain_ever=True)


async def _nothing_more() -> None:
    """Do nothing: the attempt is already undone."""


async def call_undo(call: Call, result: object) -> None:
    """Call the tool's undo function with the parameters that it declares."""
    undo = call.tool.undo
    if undo is None:
        raise AssertionError  # only compensatable tools are undone, and they have an undo function
    await invoke(
        undo, arguments_by_name(undo, {**call.arguments, **_provider_argument(call), "result": result, "call": call})
    )


async def run_function(call: Call, cancelled: Cancellation | None = None) -> Any:
    """Run the effect of a call: the tool's function, or what the call brings in its place."""
    extra = _provider_argument(call)
    if call.effect_fn is not None:
        return await call.effect_fn(extra)
    return await invoke(call.tool.function, {**call.arguments, **extra}, cancelled)


def _provider_argument(call: Call) -> dict[str, str]:
    return {} if call.tool.provider_key is None else {call.tool.provider_key: call.provider_key}
