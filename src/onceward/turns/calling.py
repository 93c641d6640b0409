"""Run one planned call through the ledger, and say in an envelope what became of it.

The ledger decides who runs; the gate decides whether it may still run, as the first thing inside the effect, so that a
replay fires nothing. Whatever then happens is recorded by the class of the tool and told in the words of the envelope.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from onceward import errors, run
from onceward.core.claim import Claim, Entry
from onceward.core.verdict import Committed, Verdict
from onceward.ledger import Ledger
from onceward.terms import Effect, Terms
from onceward.turns.answer import kept, opened, told, words
from onceward.turns.call import Call, Gate
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.invoke import Cancelled, by_name, invoke
from onceward.turns.observe import TOOL_BASED, IdempotencyStatus, Observer

# That something was taken back is remembered longer than any group of turns lives: what runs again under the same key
# is told by it from what was undone.
UNDONE_SECONDS = 90 * 24 * 3600.0


async def perform(
    ledger: Ledger, gate: Gate, call: Call, wait_seconds: float | None = None, observer: Observer | None = None
) -> Envelope:
    """Run the call, or find what became of it. Raises what the gate raises, and what says that the store is down."""
    started = time.perf_counter()
    trial = Trial(ledger, call, gate)
    envelope = await trial.run(wait_seconds)
    if trial.in_doubt and call.tool.reconcile is not None:
        # It has just gone wrong: whoever can be asked may know already. It is not run again for that.
        envelope = await Trial(ledger, call).run(wait_seconds)
    if observer is not None:
        cached = trial.check is IdempotencyStatus.DUPLICATE_COMPLETED
        seconds = time.perf_counter() - started
        observer.checked(call.key, trial.check.value, cached=cached, seconds=seconds, key_type=TOOL_BASED)
        if trial.in_doubt:
            observer.put_in_doubt(call.key)
    await gate.done(call, envelope)
    return envelope


class NothingRun(errors.NotDone):
    """Stands for the effect where it is only asked what became of it."""


@dataclass(slots=True)
class Trial:
    """One way through the ledger. Without a gate nothing is run: it is only found out what happened."""

    ledger: Ledger
    call: Call
    gate: Gate | None = None
    # What was raised, by whom: exceptions of the ledger and of the function may be of the same class.
    raised: BaseException | None = field(default=None, init=False)
    hook_raised: BaseException | None = field(default=None, init=False)
    gate_raised: BaseException | None = field(default=None, init=False)
    ran: bool = field(default=False, init=False)
    taken_back: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)
    check: IdempotencyStatus = field(default=IdempotencyStatus.PROCESSING_STARTED, init=False)
    # Whether this very run ended without anyone knowing what it did.
    in_doubt: bool = field(default=False, init=False)

    async def run(self, wait_seconds: float | None) -> Envelope:
        call = self.call
        try:
            value = await run.run(
                self.ledger,
                call.key,
                self._effect,
                fingerprint=call.fingerprint,
                terms=self._terms(wait_seconds),
                scope=call.scope,
            )
        except Exception as error:  # noqa: BLE001  # the tool's own, which may be anything; the rest is raised again
            envelope = await self._after(error)
        else:
            if not self.ran:
                self.check = IdempotencyStatus.DUPLICATE_COMPLETED
            envelope = opened(call, value, CallStatus.DONE if self.ran else CallStatus.REPLAYED)
        if self.cancelled:
            raise asyncio.CancelledError
        return envelope

    # What the ledger runs.

    async def _effect(self) -> dict[str, Any]:
        if self.gate is None:
            raise NothingRun("it has not happened")
        try:
            await self.gate.fire(self.call)
        except (Exception, asyncio.CancelledError) as error:
            self.gate_raised = error
            raise errors.NotDone("the gate did not let it begin") from error
        self.ran = True
        claim = run.current_claim()
        call = self.call.of_attempt(self.ledger.namespace, claim.attempt)
        arguments = dict(call.arguments)
        if call.tool.provider_key is not None:
            arguments[call.tool.provider_key] = call.provider_key
        cancelled = Cancelled()
        try:
            result = await invoke(call.tool.function, arguments, cancelled)
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.cancelled = cancelled.asked
        return kept(call, result, attempt=claim.attempt, version=claim.version)

    def _terms(self, wait_seconds: float | None) -> Terms:
        tool = self.call.tool
        return Terms(
            effect=tool.effect,
            undo=None if tool.undo is None else self._undo,
            reconcile=None if tool.reconcile is None else self._reconcile,
            not_done=tool.not_done,
            lease_seconds=tool.lease_seconds,
            retain_seconds=self.call.retain_seconds,
            wait_seconds=tool.wait_seconds if wait_seconds is None else wait_seconds,
        )

    async def _undo(self) -> None:
        """Of an attempt that raised, or whose holder vanished: nobody knows its result."""
        # The ledger names an undo by the attempt that it takes back, at the end of its key.
        attempt = int(run.current_claim().key.rpartition(":")[2])
        call = self.call.of_attempt(self.ledger.namespace, attempt)
        try:
            await take_back(call, None)
        except BaseException as error:
            self.hook_raised = error
            raise
        self.taken_back = True

    async def _reconcile(self, entry: Entry) -> Verdict:
        tool = self.call.tool
        if tool.reconcile is None:
            raise AssertionError  # the terms name it only when there is one
        call = self.call.of_attempt(self.ledger.namespace, entry.attempt)
        known = {**call.arguments, **_handed(call), "call": call, "entry": entry}
        try:
            verdict: Verdict = await invoke(tool.reconcile, by_name(tool.reconcile, known, other=entry))
        except BaseException as error:
            self.hook_raised = error
            raise
        if isinstance(verdict, Committed):
            found = kept(call, verdict.value, attempt=entry.attempt, version=entry.version, reconciled=True)
            return replace(verdict, value=found)
        return verdict

    # What became of it.

    async def _after(self, error: Exception) -> Envelope:
        if self.gate_raised is not None:
            await self._free()
            raise self.gate_raised
        if error is self.raised:
            return await self._after_its_own(error)
        if error is self.hook_raised:
            return self._told(CallStatus.UNKNOWN, f"finding out or taking back failed: {words(error)}")
        match error:
            case NothingRun():
                await self._free()
                return self._told(CallStatus.REFUSED, str(error), may_retry=True)
            case errors.KeyReused():
                self.check = IdempotencyStatus.FINGERPRINT_MISMATCH
                return self._told(
                    CallStatus.REFUSED,
                    "mismatch: this was already called for the same thing with other arguments, and that call stands."
                    " Repeat its arguments to get its result; another effect needs another key or another group",
                    code=error.code,
                )
            case errors.Busy():
                self.check = IdempotencyStatus.DUPLICATE_PROCESSING
                return self._told(CallStatus.IN_PROGRESS, str(error), may_retry=True, code=error.code)
            case errors.InDoubt():
                self.check = IdempotencyStatus.IN_DOUBT
                return self._told(CallStatus.UNKNOWN, str(error), code=error.code)
            case errors.OutcomeNotKept():
                self.check = IdempotencyStatus.DUPLICATE_COMPLETED
                return self._told(CallStatus.REPLAYED, str(error), code=error.code)
            case errors.ClaimLost() | errors.TransactionConflict():
                return self._told(CallStatus.IN_PROGRESS, str(error), may_retry=True, code=error.code)
            case _:
                raise error

    async def _after_its_own(self, error: Exception) -> Envelope:
        """The function raised; the ledger has recorded what that means."""
        tool = self.call.tool
        said = words(error)
        if isinstance(error, (errors.NotDone, *tool.not_done)):
            await self._free()
            return self._told(CallStatus.REFUSED, said, may_retry=True)
        match tool.effect:
            case Effect.IRREVERSIBLE:
                self.in_doubt = True
                return self._told(CallStatus.UNKNOWN, said, code=errors.InDoubt.code)
            case Effect.COMPENSATABLE:
                await self._free()
                return self._told(CallStatus.REFUSED, f"{said}; what it may have done was undone", may_retry=True)
            case _:
                return self._told(CallStatus.UNKNOWN, said, may_retry=True)

    async def _free(self) -> None:
        """Nothing happened, so that the key may belong to a call with other arguments.

        What was taken back is another generation, so that nobody takes it for the next call. An idempotent tool is only
        known to have done nothing at its first attempt; others are never run again before that is known of the earlier
        ones.
        """
        call = self.call
        if self.taken_back:
            await record_undone(self.ledger, call, _nothing_more)
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
        first = 2  # the claim that frees the key is counted, too
        if call.effect is Effect.IDEMPOTENT and found.attempt > first:
            await self.ledger.fail(found, "nothing happened this time", call.retain_seconds)
        else:
            await self.ledger.release(found)

    def _told(self, status: CallStatus, detail: str, *, may_retry: bool = False, code: str = "") -> Envelope:
        return told(self.call, status, detail, may_retry=may_retry, code=code)


async def record_undone(
    ledger: Ledger, call: Call, undo: Callable[[], Awaitable[None]], wait_seconds: float | None = None
) -> dict[str, Any]:
    """Take a generation back, once; from then on the same call is the next one."""

    async def effect() -> dict[str, Any]:
        await undo()
        return {"result": None, "receipt": {"tool": call.tool.name, "key": call.key, "undone": True}}

    terms = Terms(effect=Effect.IDEMPOTENT, retain_seconds=UNDONE_SECONDS, wait_seconds=wait_seconds)
    value: dict[str, Any] = await run.run(
        ledger, call.key, effect, fingerprint=None, terms=terms, scope=call.undo_scope
    )
    return value


async def _nothing_more() -> None:
    """It is taken back already."""


async def take_back(call: Call, result: object) -> None:
    """Call the tool's undo with what it asks for."""
    undo = call.tool.undo
    if undo is None:
        raise AssertionError  # only compensatable tools are taken back, and they have one
    await invoke(undo, by_name(undo, {**call.arguments, **_handed(call), "result": result, "call": call}))


def _handed(call: Call) -> dict[str, str]:
    return {} if call.tool.provider_key is None else {call.tool.provider_key: call.provider_key}
