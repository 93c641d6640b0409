"""Calls of a user's function, `def` or `async def`, with the parameters that it declares."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onceward.errors import InvalidOption, NotDone
from onceward.ledger.run import call_here
from onceward.store.dispatch.future import driven

# Exceptions by which a tool stops its framework before it has done anything, by the package of the framework, which
# runs the tool again later. They are recognized by name, because nothing here imports a framework.
INTERRUPTS: dict[str, frozenset[str]] = {
    "langgraph": frozenset({"GraphInterrupt"}),
    "pydantic_ai": frozenset({"ApprovalRequired", "CallDeferred"}),
}


@dataclass(slots=True)
class FunctionRun:
    """The run of a function inside a call: what it returned or raised, for the caller of that function."""

    value: Any = None
    raised: BaseException | None = None

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record an exception of the function. Inside the ledger, an interrupt means that nothing was done."""
        try:
            yield
        except BaseException as error:
            self.raised = error
            if is_interrupt(error):
                raise NotDone("the tool interrupted its framework before its effect") from error
            raise

    def raise_interrupt(self) -> None:
        """Raise the exception by which the function interrupted its framework, if it did."""
        if self.raised is not None and is_interrupt(self.raised):
            raise self.raised


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception stops a framework before the tool has done anything."""
    return is_one_of(type(error), INTERRUPTS)


def is_one_of(kind: type, names: Mapping[str, frozenset[str]]) -> bool:
    """Return whether a class is, or derives from, one of these classes, given by package and name."""
    return any(base.__name__ in names.get(base.__module__.partition(".")[0], ()) for base in kind.__mro__)


@dataclass(slots=True)
class Cancellation:
    """Record of whether the caller was cancelled while its function ran in a thread, which continues."""

    requested: bool = False


async def invoke(
    function: Callable[..., Any], arguments: Mapping[str, Any], cancelled: Cancellation | None = None
) -> Any:
    """Call a function and return its result. A `def` runs in a thread, so that it does not block the event loop.

    A blocking call runs a `def` on the calling thread, and an `async def` on a new event loop.

    A thread cannot be stopped. A cancelled caller waits for its end, because the result has to be recorded. Then
    `cancelled` is set, or, if it was not given, `CancelledError` is raised.
    """
    if driven():
        return await call_here(lambda: function(**arguments))
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


def check_hook(
    option: str, hook: Callable[..., Any], names: Collection[str], *, others: int, open_ended: bool = False
) -> None:
    """Refuse a hook with unknown parameters. At most `others` required parameters may have another name.

    If the tool is open-ended, it takes any arguments, and any parameter may be one of them.
    """
    parameters = inspect.signature(hook).parameters.values()
    nameless = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    unknown = [
        one.name
        for one in parameters
        if one.name not in names
        and one.default is one.empty
        and one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}
    ]
    if nameless or (len(unknown) > others and not open_ended):
        bad = (nameless or unknown)[0]
        raise InvalidOption(
            f"the function of {option}= has a parameter {bad!r}, which cannot be passed; it can take, by name:"
            f" {', '.join(sorted(names))}"
        )
