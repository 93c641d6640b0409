"""Call a user's function, `def` or `async def`, with what it asks for."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidOption


@dataclass(slots=True)
class Cancelled:
    """Whether the caller was cancelled meanwhile; a thread goes on all the same."""

    asked: bool = False


async def invoke(function: Callable[..., Any], arguments: Mapping[str, Any], cancelled: Cancelled | None = None) -> Any:
    """The function's result. A `def` runs in a thread, so that it blocks nobody else.

    A thread cannot be stopped. Who is cancelled waits for its end, because what it did has to be known before it is
    recorded; then `cancelled` says so, or `CancelledError` is raised without it.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    context = contextvars.copy_context()
    asked = Cancelled() if cancelled is None else cancelled
    work = asyncio.get_running_loop().run_in_executor(None, context.run, _called, function, arguments)
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            asked.asked = True
    result = work.result()
    if asked.asked and cancelled is None:
        raise asyncio.CancelledError
    return await result if hasattr(type(result), "__await__") else result


def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except StopIteration as error:
        # It cannot leave a thread through a future, which would then never be done.
        raise RuntimeError("StopIteration") from error


def by_name(function: Callable[..., Any], known: Mapping[str, Any], *, other: object = None) -> dict[str, Any]:
    """What the function takes of what is known, by name. A parameter of another name gets `other`."""
    parameters = inspect.signature(function).parameters.values()
    taken: dict[str, Any] = {}
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            return {name: value for name, value in known.items() if name in taken or name not in _OURS} | taken
        if one.name in known:
            taken[one.name] = known[one.name]
        elif one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
            taken[one.name] = other
    return taken


# What a hook may ask for beside the arguments of the call.
_OURS = frozenset({"call", "entry", "result"})


def check_hook(option: str, hook: Callable[..., Any], names: Collection[str], *, others: int) -> None:
    """Refuse a hook that asks for what it cannot be given; so many parameters may have names of their own."""
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
        raise InvalidOption(f"{option}= takes {bad!r}; what it can have, by name, is {', '.join(sorted(names))}")
