"""Calls of a user's function, `def` or `async def`, with the parameters that it declares."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidOption


@dataclass(slots=True)
class Cancellation:
    """Record of whether the caller was cancelled while its function ran in a thread, which continues."""

    requested: bool = False


async def invoke(
    function: Callable[..., Any], arguments: Mapping[str, Any], cancelled: Cancellation | None = None
) -> Any:
    """Call a function and return its result. A `def` runs in a thread, so that it does not block the event loop.

    A thread cannot be stopped. A cancelled caller waits for its end, because the result has to be recorded. Then
    `cancelled` is set, or, if it was not given, `CancelledError` is raised.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    context = contextvars.copy_context()
    cancellation = Cancellation() if cancelled is None else cancelled
    work = asyncio.get_running_loop().run_in_executor(None, context.run, _call_in_thread, function, arguments)
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            cancellation.requested = True
    result = work.result()
    if cancellation.requested and cancelled is None:
        raise asyncio.CancelledError
    return await result if hasattr(type(result), "__await__") else result


def _call_in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as error:
        # A future cannot carry StopIteration: it would never be done.
        raise RuntimeError("StopIteration") from error


def arguments_by_name(
    function: Callable[..., Any], known: Mapping[str, Any], *, other: object = None
) -> dict[str, Any]:
    """Select the known values that the function has parameters for. A parameter with another name gets `other`."""
    parameters = inspect.signature(function).parameters.values()
    taken: dict[str, Any] = {}
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            return {
                name: value for name, value in known.items() if name in taken or name not in _HOOK_ARGUMENTS
            } | taken
        if one.name in known:
            taken[one.name] = known[one.name]
        elif one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
            taken[one.name] = other
    return taken


# Parameters of hooks that are not arguments of the call.
_HOOK_ARGUMENTS = frozenset({"call", "entry", "result"})


def check_hook(option: str, hook: Callable[..., Any], names: Collection[str], *, others: int) -> None:
    """Refuse a hook with unknown parameters. At most `others` required parameters may have another name."""
    parameters = inspect.signature(hook).parameters.values()
    nameless = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    unknown = [
        one.name
        for one in parameters
        if one.name not in names
        and one.default is one.empty
        and one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}
    ]
    if nameless or len(unknown) > others:
        bad = (nameless or unknown)[0]
        raise InvalidOption(
            f"the function of {option}= has a parameter {bad!r}, which cannot be passed; it can take, by name:"
            f" {', '.join(sorted(names))}"
        )
