"""The check of a function that the application gives as an option. The middlewares call it without awaiting."""

from __future__ import annotations

import inspect

from onceward.errors import InvalidOption


def check_plain_function(option: str, function: object, *arguments: str) -> None:
    """Raise `InvalidOption` unless this is a plain function that can be called with these arguments."""
    takes = f"it must be a plain function of {' and '.join(arguments)}"
    call = getattr(function, "__call__", None)  # noqa: B004  # an object may have an async __call__
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call):
        raise InvalidOption(f"{option} got the async function {function!r}, but {takes}")
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]  # raises TypeError for anything else
    except ValueError:
        return  # a function of C may not tell its parameters
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidOption(f"{option} got {function!r}, but {takes}: {error}") from None
