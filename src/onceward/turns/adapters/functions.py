"""A toolbox as plain async functions, for frameworks that take functions as tools.

    refund = functions(toolbox, ledger, turn_group_id=turn.turn_group_id)["refund"]
    await refund(order_id="12345")          # {"status": "done", "result": …}

They keep the names, the documentation and the signatures of the tools, which is what frameworks look at; what comes
back is the envelope, as the model is to read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from onceward.core.canonical import Json
from onceward.ledger import Ledger
from onceward.turns.call import Gate
from onceward.turns.keys import Group, check_group
from onceward.turns.observe import Observer
from onceward.turns.tool import Tool
from onceward.turns.toolbox import Toolbox

Function: TypeAlias = Callable[..., Awaitable[dict[str, Json]]]


def functions(
    toolbox: Toolbox,
    ledger: Ledger,
    *,
    turn_group_id: Group,
    principal: str = "local",
    tenant_id: str | None = None,
    gate: Gate | None = None,
    wait_seconds: float | None = None,
    observer: Observer | None = None,
) -> dict[str, Function]:
    """One function for each tool, by name; calls of one group share their effects.

    The group is a string, or a function without arguments that returns one and is asked at each call.
    """
    check_group(turn_group_id)

    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Json]:
        envelope = await toolbox.call(
            name,
            arguments,
            ledger=ledger,
            turn_group_id=turn_group_id,
            gate=gate,
            principal=principal,
            tenant_id=tenant_id,
            wait_seconds=wait_seconds,
            observer=observer,
        )
        return envelope.json()

    return {tool.name: function_of(tool, call) for tool in toolbox}


def function_of(tool: Tool, call: Callable[[str, dict[str, Any]], Awaitable[dict[str, Json]]]) -> Function:
    """A function that looks like the tool, and passes its name and its arguments on."""
    whole = inspect.signature(tool.function)
    shown = whole.replace(
        parameters=[one for one in whole.parameters.values() if one.name != tool.provider_key],
        return_annotation=dict[str, Any],
    )

    async def function(*args: Any, **named: Any) -> dict[str, Json]:
        # What is wrong with the arguments is for the model to read, and not an exception here.
        placed = dict(zip(shown.parameters, args, strict=False))
        return await call(tool.name, {**placed, **named})

    hints = dict(getattr(tool.function, "__annotations__", {}))
    hints.pop(tool.provider_key or "", None)
    function.__name__ = function.__qualname__ = tool.name
    function.__doc__ = tool.description
    function.__annotations__ = {**hints, "return": dict[str, Any]}
    function.__signature__ = shown  # type: ignore[attr-defined]  # what inspect looks at first
    return function
