"""The decorators `once`, for effects, and `cached`, for values.

An effect is never repeated without the caller's knowledge. A value is computed again when its arguments or dependencies
change, or when it is too old.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from onceward.core.fingerprint import fingerprint
from onceward.core.key import check_key, fill, parse
from onceward.errors import InvalidKey, InvalidOption
from onceward.ledger import run
from onceward.ledger.terms import Effect, Terms

if TYPE_CHECKING:
    from onceward.ledger.ledger import Ledger

F = TypeVar("F", bound=Callable[..., Any])

CACHE_SCOPE = "cache"


def once(ledger: Ledger, key: str | Callable[..., str], ignore: Sequence[str], terms: Terms) -> Callable[[F], F]:
    """Implement `Ledger.once`."""
    if terms.undo is not None:
        _check_undo(terms.undo)

    def decorate(function: F) -> F:
        wanted = _KeyedFunction(function, key, ignore)
        known = terms if terms.returns is not None else replace(terms, returns=_declared_return(function))

        def start(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, object]:
            values = wanted.bind(args, kwargs)
            # The function's name is part of the fingerprint, so that two functions that share a key are refused.
            return wanted.key(args, kwargs, values), [wanted.name, wanted.fingerprinted(values)]

        return _wrap(ledger, function, start, known, run.SCOPE)

    return decorate


def _check_undo(undo: Callable[..., object]) -> None:
    try:
        inspect.signature(undo)
    except (TypeError, ValueError):
        raise InvalidOption(f"the parameters of undo={undo!r} cannot be inspected; wrap it in a function") from None


def _with_undo_of(terms: Terms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Terms:
    """Pass the arguments of the call to the undo function, if it takes any, so that it knows what to undo."""
    undo = terms.undo
    if undo is None or not inspect.signature(undo).parameters:
        return terms
    return replace(terms, undo=lambda: undo(*args, **kwargs))


def cached(
    ledger: Ledger, key: str | Callable[..., str], ignore: Sequence[str], for_seconds: float, depends_on: object
) -> Callable[[F], F]:
    """Implement `Ledger.cached`."""

    def decorate(function: F) -> F:
        wanted = _KeyedFunction(function, key, ignore)
        terms = Terms(effect=Effect.PURE, retain_seconds=for_seconds, returns=_declared_return(function))

        def start(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, object]:
            values = wanted.bind(args, kwargs)
            depends = depends_on() if callable(depends_on) else depends_on
            inputs = fingerprint([wanted.name, wanted.fingerprinted(values), depends])
            # Other inputs give another entry, so the value is computed again. The old entry expires.
            return check_key(f"{wanted.key(args, kwargs, values)}#{inputs[:32]}"), inputs

        return _wrap(ledger, function, start, terms, CACHE_SCOPE)

    return decorate


def _wrap(
    ledger: Ledger,
    function: F,
    start: Callable[[tuple[Any, ...], dict[str, Any]], tuple[str, object]],
    terms: Terms,
    scope: str,
) -> F:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            key, inputs = start(args, kwargs)

            def effect() -> Awaitable[Any]:
                return cast("Awaitable[Any]", function(*args, **kwargs))

            known = _with_undo_of(terms, args, kwargs)
            return await run.run(ledger, key, effect, fingerprint=inputs, terms=known, scope=scope)

        return cast("F", awaited)

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"{function.__qualname__} is a generator, which has no single result to record")

    @functools.wraps(function)
    def waited(*args: Any, **kwargs: Any) -> Any:
        key, inputs = start(args, kwargs)
        known = _with_undo_of(terms, args, kwargs)
        return ledger.blocking.run_terms(key, lambda: function(*args, **kwargs), inputs, known, scope)

    return cast("F", waited)


class _KeyedFunction:
    """The keys and fingerprints of one function's calls."""

    def __init__(self, function: Callable[..., Any], key: str | Callable[..., str], ignore: Sequence[str]) -> None:
        if isinstance(function, type) or not callable(function) or not hasattr(function, "__qualname__"):
            raise InvalidOption(f"the decorated object must be a function, not {function!r}; wrap it in a function")
        if isinstance(ignore, str):
            raise InvalidOption(f"ignore= must be a tuple of names: ({ignore!r},)")
        self.name = function.__qualname__
        self._signature = inspect.signature(function)
        self._key = key
        self._ignore = frozenset(ignore)
        names = self._signature.parameters.keys()
        unknown = self._ignore - names
        if unknown:
            raise InvalidOption(f"ignore= names {min(unknown)!r}, which is not a parameter of {self.name}")
        if isinstance(key, str):
            check_key(key)
            for _, field in parse(key).parts:
                if field is not None and field.split(".")[0].split("[")[0] not in names:
                    raise InvalidKey(
                        f"the key template {key!r} names {field!r}, which is not a parameter of {self.name}"
                    )
        elif not callable(key):
            raise InvalidOption(
                "key= must be a template such as 'charge:{order_id}', or a function of the same arguments"
            )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, object]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any], values: Mapping[str, object]) -> str:
        return fill(self._key, values) if isinstance(self._key, str) else check_key(self._key(*args, **kwargs))

    def fingerprinted(self, values: Mapping[str, object]) -> dict[str, object]:
        return {name: value for name, value in values.items() if name not in self._ignore}


def _declared_return(function: Callable[..., Any]) -> type | None:
    try:
        declared = typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        return None
    return declared if isinstance(declared, type) else None
