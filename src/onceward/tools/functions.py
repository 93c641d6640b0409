"""A toolbox as plain async functions, for frameworks that take functions as tools.

    refund = functions(toolbox, ledger, turn_group_id=turn.turn_group_id)["refund"]
    await refund(order_id="12345")          # {"status": "done", "result": …}

The functions have the names, docstrings and signatures of the tools, which frameworks read. They return the envelope as
JSON for the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from onceward.core.canonical import Json
from onceward.ledger.ledger import Ledger
from onceward.tools.call import Gate
from onceward.tools.keys import Group, check_group
from onceward.tools.observer import Observer
from onceward.tools.tool import Tool
from onceward.tools.toolbox import Toolbox

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
    """Return an async function for each tool of a toolbox.

    Args:
        toolbox: The tools.
        ledger: The ledger that records the calls.
        turn_group_id: The group of calls that share their effects: a string, or a function without arguments that
            returns one and is called for each call.
        principal: The caller. Different principals never share effects.
        tenant_id: The tenant. By default, the principal.
        gate: Asked before an effect begins, and notified of the result.
        wait_seconds: How long to wait for a running duplicate, instead of the tool's `wait_seconds`.
        observer: Notified of each check of a key.

    Returns:
        The functions by the name of their tool. Each returns the envelope as a dict.

    Raises:
        InvalidOption: `turn_group_id` is not valid.
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
    """Return a function that has the signature of the tool, and passes its name and arguments to `call`."""
    signature = inspect.signature(tool.function)
    visible = signature.replace(
        parameters=[one for one in signature.parameters.values() if one.name != tool.provider_key],
        return_annotation=dict[str, Any],
    )

    async def function(*args: Any, **named: Any) -> dict[str, Json]:
        # Do not raise for wrong arguments: the envelope reports them to the model.
        positional = dict(zip(visible.parameters, args, strict=False))
        return await call(tool.name, {**positional, **named})

    hints = dict(getattr(tool.function, "__annotations__", {}))
    hints.pop(tool.provider_key or "", None)
    function.__name__ = function.__qualname__ = tool.name
    function.__doc__ = tool.description
    function.__annotations__ = {**hints, "return": dict[str, Any]}
    function.__signature__ = visible  # type: ignore[attr-defined]  # inspect reads it first
    return function
