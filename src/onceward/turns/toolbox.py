"""The toolbox: the one way to call a tool, so that it has one effect however often it is asked for.

toolbox = Toolbox([refund, look_up])
envelope = await toolbox.call("refund", {"order_id": "12345"}, ledger=ledger, turn_group_id=turn.turn_group_id)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from onceward import errors
from onceward.core.canonical import Json, canonical
from onceward.core.claim import Status
from onceward.ledger import Ledger
from onceward.terms import Effect, EffectClass
from onceward.turns.answer import opened, told, words
from onceward.turns.call import Call, Gate, NullGate, plan
from onceward.turns.calling import Trial, perform, record_undone, take_back
from onceward.turns.envelope import CallStatus, Envelope
from onceward.turns.invoke import invoke
from onceward.turns.keys import Group
from onceward.turns.observe import Observer
from onceward.turns.plain import plain
from onceward.turns.tool import Tool, tool


class Toolbox:
    """Tools by name. `principal` and `tenant_id` keep calls apart: nothing of one is ever answered to another."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for one in tools:
            self.register(one)

    def register(self, declared: Tool) -> Tool:
        """Add a tool, which has to be declared: a plain function does not say what repeating it would do."""
        if not isinstance(declared, Tool):
            raise errors.InvalidOption(f"{declared!r} is no tool; declare it with @tool(effect=…)")
        if declared.name in self._tools:
            raise errors.InvalidOption(f"there is a tool {declared.name!r} already")
        self._tools[declared.name] = declared
        return declared

    def tool(self, *, effect: EffectClass, **options: Any) -> Callable[[Callable[..., Any]], Tool]:
        """Declare and add in one: `@toolbox.tool(effect=…)`, with the options of `tool`."""
        declare = tool(effect=effect, **options)
        return lambda function: self.register(declare(function))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            known = ", ".join(sorted(self._tools)) or "none"
            raise errors.NotFound(f"there is no tool {name!r}; there are: {known}") from None

    def schema(self) -> list[dict[str, Json]]:
        """What a model is told of the tools: name, description and JSON Schema of the arguments of each."""
        return [{"name": one.name, "description": one.description, "parameters": one.parameters} for one in self]

    @property
    def registry_version(self) -> str:
        """One hash of all tools as they are declared; part of `dep_fp` where nobody says otherwise."""
        parts = [[one.name, one.version, one.effect.value, one.description, one.parameters] for one in self]
        return hashlib.sha256(canonical(cast("Json", sorted(parts, key=lambda part: str(part[0]))))).hexdigest()

    def plan(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        turn_group_id: Group | None = None,
        principal: str = "local",
        tenant_id: str | None = None,
        idempotency_key: str | None = None,
        retain_seconds: float | None = None,
    ) -> Call:
        """The call that these arguments make. `NotFound`, `InvalidInput` or `InvalidKey` when they make none.

        turn_group_id    the group of calls that share their effects: a string, or a function without arguments that
                         returns one. It can be left out only beside `idempotency_key`
        idempotency_key  the caller's own key, which is then the whole key; other arguments under it are refused
        retain_seconds   how long the outcome is kept, instead of the tool's `idempotent_for`
        """
        return plan(
            self[name],
            arguments,
            principal=principal,
            tenant_id=principal if tenant_id is None else tenant_id,
            turn_group_id=turn_group_id,
            idempotency_key=idempotency_key,
            retain_seconds=retain_seconds,
        )

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        ledger: Ledger,
        turn_group_id: Group | None = None,
        gate: Gate | None = None,
        principal: str = "local",
        tenant_id: str | None = None,
        idempotency_key: str | None = None,
        retain_seconds: float | None = None,
        wait_seconds: float | None = None,
        observer: Observer | None = None,
    ) -> Envelope:
        """Call a tool once for its key, or answer with what became of it; the options are those of `plan`.

        Raises `errors.InvalidOption` for an option that cannot work, and `errors.Superseded`, or whatever else the gate
        raises: then nothing ran. Raises `StoreUnavailable`. Everything else that can happen to a call is in the
        envelope.
        """
        try:
            call = self.plan(
                name,
                arguments,
                turn_group_id=turn_group_id,
                principal=principal,
                tenant_id=tenant_id,
                idempotency_key=idempotency_key,
                retain_seconds=retain_seconds,
            )
        except (errors.NotFound, errors.InvalidInput, errors.InvalidKey) as error:
            return Envelope(CallStatus.REFUSED, name, detail=str(error), code=error.code)
        if call.effect is Effect.PURE:
            return await _pure(call)
        call = await self._current(ledger, call)
        return await perform(ledger, gate or NullGate(), call, wait_seconds, observer)

    async def check(
        self, name: str, arguments: Mapping[str, Any], *, ledger: Ledger, wait_seconds: float | None = 0.0, **whose: Any
    ) -> Envelope:
        """Find out what became of a call, and run nothing. `whose` is as in `plan`."""
        call = await self._current(ledger, self.plan(name, arguments, **whose))
        return await Trial(ledger, call).run(wait_seconds)

    async def undo(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        ledger: Ledger,
        generation: int | None = None,
        wait_seconds: float | None = None,
        **whose: Any,
    ) -> Envelope:
        """Take back, once, what a compensatable tool did; the same call may then run again, as the next generation.

        `done` or `replayed`: it is taken back. `refused`: there is nothing to take back. `in_progress`: it still runs.
        `unknown`: taking it back went wrong. Without `generation`, the latest one is meant; `whose` is as in `plan`.
        """
        call = self.plan(name, arguments, **whose)
        if call.effect is not Effect.COMPENSATABLE:
            raise errors.InvalidOption(f"{name} is {call.effect}: only compensatable tools are undone")
        call = await self._current(ledger, call) if generation is None else replace(call, generation=generation)
        before = await ledger.read(call.undo_scope, call.key)
        if before is None or before.status is not Status.COMPLETED:
            # Whoever vanished in the middle of it is taken over here, and that takes back what he left.
            found = await Trial(ledger, call).run(wait_seconds)
            if not found.ok:
                return found
        else:
            found = told(call, CallStatus.DONE, "")
        return await _take_back(ledger, call, found, wait_seconds)

    async def _current(self, ledger: Ledger, call: Call) -> Call:
        """The call in its latest generation."""
        if call.effect is not Effect.COMPENSATABLE:
            return call
        while True:
            undone = await ledger.read(call.undo_scope, call.key)
            if undone is None or undone.status is not Status.COMPLETED:
                return call
            call = replace(call, generation=call.generation + 1)


async def _pure(call: Call) -> Envelope:
    """Nothing to guard: it runs whenever it is called."""
    name = call.tool.name
    try:
        result = plain(await invoke(call.tool.function, call.arguments))
    except Exception as error:  # noqa: BLE001  # the tool's own, for the model to read
        return Envelope(CallStatus.REFUSED, name, may_retry=True, detail=words(error))
    return Envelope(CallStatus.DONE, name, result=result)


async def _take_back(ledger: Ledger, call: Call, found: Envelope, wait_seconds: float | None) -> Envelope:
    ran = False
    entry = await ledger.read(call.scope, call.key)
    call = call.of_attempt(ledger.namespace, 1 if entry is None else entry.attempt)

    async def undo() -> None:
        nonlocal ran
        ran = True
        await take_back(call, found.result)

    try:
        value = await record_undone(ledger, call, undo, wait_seconds)
    except errors.Busy as error:
        return told(call, CallStatus.IN_PROGRESS, str(error), may_retry=True)
    except (errors.StoreUnavailable, errors.StoreClosed):
        raise
    except Exception as error:  # noqa: BLE001  # the tool's own, for whoever asked for the undo
        return told(call, CallStatus.UNKNOWN, f"the undo failed: {words(error)}", may_retry=True)
    return opened(call, value, CallStatus.DONE if ran else CallStatus.REPLAYED)
