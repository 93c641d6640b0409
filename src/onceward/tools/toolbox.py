"""The toolbox: calls tools so that each call has one effect, however often it is repeated.

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
from onceward.ledger.ledger import Ledger
from onceward.ledger.terms import Effect, EffectClass
from onceward.tools.call import Call, Gate, NullGate, plan
from onceward.tools.envelope import CallStatus, Envelope
from onceward.tools.execution import Execution, call_undo, execute, run_function, undo_generation
from onceward.tools.json_result import to_json
from onceward.tools.keys import Group
from onceward.tools.observer import Observer
from onceward.tools.receipts import envelope_of, error_text, status_envelope
from onceward.tools.tool import Tool, tool


class Toolbox:
    """A set of tools by name, and the one way to call them.

    Calls of different principals or tenants are separate: no result of one is ever returned to another.

    Args:
        tools: The tools, declared with `tool`.

    Raises:
        InvalidOption: One of them is not a `Tool`, or two have the same name.
    """

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for one in tools:
            self.register(one)

    def register(self, declared: Tool) -> Tool:
        """Add a tool.

        Args:
            declared: A declared tool. A plain function is refused, because it does not declare its effect class.

        Returns:
            The same tool.

        Raises:
            InvalidOption: It is not a `Tool`, or the toolbox already has a tool with its name.
        """
        if not isinstance(declared, Tool):
            raise errors.InvalidOption(f"{declared!r} is not a tool; declare it with @tool(effect=…)")
        if declared.name in self._tools:
            raise errors.InvalidOption(f"the toolbox already has a tool named {declared.name!r}")
        self._tools[declared.name] = declared
        return declared

    def tool(self, *, effect: EffectClass, **options: Any) -> Callable[[Callable[..., Any]], Tool]:
        """Declare a function as a tool and add it: `@toolbox.tool(effect=…)`.

        Args:
            effect: The effect class: pure, idempotent, compensatable or irreversible.
            options: The other options of `tool`.

        Returns:
            A decorator that returns the `Tool`.

        Raises:
            InvalidOption: An option is wrong, or the toolbox already has a tool with its name.
        """
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
            raise errors.NotFound(f"unknown tool {name!r}; the tools are: {known}") from None

    def schema(self) -> list[dict[str, Json]]:
        """Describe the tools for a model.

        Returns:
            Name, description and JSON Schema of the arguments of each tool.
        """
        return [{"name": one.name, "description": one.description, "parameters": one.parameters} for one in self]

    @property
    def registry_version(self) -> str:
        """The hash of all tool declarations. It is part of `dep_fp` unless another version is given."""
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
        """Plan a call without running it: check its arguments and build its key.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call, by name.
            turn_group_id: The group of calls that share their effects: a string, or a function without arguments that
                returns one. Required unless `idempotency_key` is given.
            principal: The caller. Different principals never share effects.
            tenant_id: The tenant. By default, the principal.
            idempotency_key: The caller's key for this call, used instead of the business key and the group. The same
                key with other arguments is refused.
            retain_seconds: How long the outcome is stored, instead of the tool's `idempotent_for`.

        Returns:
            The planned call.

        Raises:
            NotFound: The toolbox has no tool with this name.
            InvalidInput: The tool does not accept these arguments.
            InvalidKey: The arguments do not form a key, for example because a key field is missing.
            InvalidOption: `turn_group_id`, `principal` or `tenant_id` is not valid.
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
        """Call a tool once for its key. A repeated call returns the outcome of the first.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call, by name.
            ledger: The ledger that records the call.
            turn_group_id: As in `plan`.
            gate: Asked before the effect begins, and notified of the result. By default every call may run.
            principal: As in `plan`.
            tenant_id: As in `plan`.
            idempotency_key: As in `plan`.
            retain_seconds: As in `plan`.
            wait_seconds: How long to wait for a running duplicate, instead of the tool's `wait_seconds`.
            observer: Notified of the check of the key.

        Returns:
            The envelope. It reports every result of a call, including errors of the tool and invalid arguments.

        Raises:
            InvalidOption: An option is wrong. Nothing ran.
            Superseded: The gate refused the call. Nothing ran. Other exceptions of the gate are raised likewise.
            StoreUnavailable: The store of the ledger is unavailable.
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
        return await run_call(ledger, call, gate=gate, wait_seconds=wait_seconds, observer=observer)

    async def check(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        ledger: Ledger,
        wait_seconds: float | None = 0.0,
        **identity: Any,
    ) -> Envelope:
        """Find out the outcome of a call without running it.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call, by name.
            ledger: The ledger that recorded the call.
            wait_seconds: How long to wait for the call if it still runs.
            identity: The options of `plan` that identify the call, such as `turn_group_id`.

        Returns:
            The envelope; its status is `refused` if the call has not happened.

        Raises:
            NotFound: The toolbox has no tool with this name.
            InvalidInput: The tool does not accept these arguments.
            InvalidKey: The arguments do not form a key.
            InvalidOption: An option is wrong.
            StoreUnavailable: The store of the ledger is unavailable.
        """
        call = await latest_generation(ledger, self.plan(name, arguments, **identity))
        return await Execution(ledger, call).run(wait_seconds)

    async def undo(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        ledger: Ledger,
        generation: int | None = None,
        wait_seconds: float | None = None,
        **identity: Any,
    ) -> Envelope:
        """Undo a call of a compensatable tool, once. The same call may then run again, as the next generation.

        Args:
            name: The name of the tool.
            arguments: The arguments of the call, by name.
            ledger: The ledger that recorded the call.
            generation: The generation to undo. By default, the latest.
            wait_seconds: How long to wait for the call or for another undo that still runs.
            identity: The options of `plan` that identify the call, such as `turn_group_id`.

        Returns:
            The envelope. Its status is `done` or `replayed` if the call is undone, `refused` if there was nothing to
            undo, `in_progress` if the call still runs, and `unknown` if the undo failed.

        Raises:
            NotFound: The toolbox has no tool with this name.
            InvalidInput: The tool does not accept these arguments.
            InvalidKey: The arguments do not form a key.
            InvalidOption: The tool is not compensatable, or an option is wrong.
            StoreUnavailable: The store of the ledger is unavailable.
        """
        call = self.plan(name, arguments, **identity)
        if call.effect is not Effect.COMPENSATABLE:
            raise errors.InvalidOption(f"only compensatable tools can be undone, and {name} is {call.effect}")
        call = await latest_generation(ledger, call) if generation is None else replace(call, generation=generation)
        before = await ledger.read(call.undo_scope, call.key)
        if before is None or before.status is not Status.COMPLETED:
            # If the holder of the call has disappeared, this takes over its claim and undoes its attempt.
            found = await Execution(ledger, call).run(wait_seconds)
            if not found.ok:
                return found
        else:
            found = status_envelope(call, CallStatus.DONE, "")
        return await _undo_call(ledger, call, found, wait_seconds)


async def run_call(
    ledger: Ledger,
    call: Call,
    *,
    gate: Gate | None = None,
    wait_seconds: float | None = None,
    observer: Observer | None = None,
) -> Envelope:
    """Run a planned call, or find its outcome. A pure tool runs each time, and nothing is recorded."""
    if call.effect is Effect.PURE:
        return await _pure(call)
    call = await latest_generation(ledger, call)
    return await execute(ledger, gate or NullGate(), call, wait_seconds, observer)


async def latest_generation(ledger: Ledger, call: Call) -> Call:
    """Return the call in its latest generation."""
    if call.effect is not Effect.COMPENSATABLE:
        return call
    while True:
        undone = await ledger.read(call.undo_scope, call.key)
        if undone is None or undone.status is not Status.COMPLETED:
            return call
        call = replace(call, generation=call.generation + 1)


async def _pure(call: Call) -> Envelope:
    """Run a pure tool. It has no effect, so nothing is recorded."""
    name = call.tool.name
    try:
        result = to_json(await run_function(call))
    except Exception as error:  # noqa: BLE001  # an error of the tool, for the model
        return Envelope(CallStatus.REFUSED, name, may_retry=True, detail=error_text(error))
    return Envelope(CallStatus.DONE, name, result=result)


async def _undo_call(ledger: Ledger, call: Call, found: Envelope, wait_seconds: float | None) -> Envelope:
    ran = False
    entry = await ledger.read(call.scope, call.key)
    if entry is not None:
        call = call.of_attempt(ledger, entry, entry.attempt)

    async def undo() -> None:
        nonlocal ran
        ran = True
        await call_undo(call, found.result)

    try:
        value = await undo_generation(ledger, call, undo, wait_seconds)
    except errors.Busy as error:
        return status_envelope(call, CallStatus.IN_PROGRESS, str(error), may_retry=True)
    except (errors.StoreUnavailable, errors.StoreClosed):
        raise
    except Exception as error:  # noqa: BLE001  # an error of the undo function, for the caller
        return status_envelope(call, CallStatus.UNKNOWN, f"the undo failed: {error_text(error)}", may_retry=True)
    return envelope_of(call, value, CallStatus.DONE if ran else CallStatus.REPLAYED)
