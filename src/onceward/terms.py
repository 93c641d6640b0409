"""How an effect is to be run: what repeating it would do, and how long everyone waits.

What happens to an effect that was interrupted follows from its class, which has to be declared:

    class          its holder vanished            it raised
    pure           run again                      failed; may run again
    idempotent     run again                      failed; may run again
    compensatable  undo once, then run            undo, then failed; a failing undo leaves it in doubt
    irreversible   in doubt                       in doubt, unless it raised NotDone or one of `not_done`
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict

from onceward.core.claim import SECOND, Entry
from onceward.core.verdict import Verdict
from onceward.errors import InvalidOption

# An effect that runs longer than this is taken for hung: its claim is no longer renewed.
MAX_RUN_SECONDS = 3600.0
# What is kept of one result; larger ones settle the key without a value.
RESULT_BYTES_MAX = 16 * 1024 * 1024
# Bounds that keep every moment inside the calendar of every store.
LEASE_SECONDS_MAX = 30 * 24 * 3600.0
RETAIN_SECONDS_MAX = 100 * 365 * 24 * 3600.0


class Effect(enum.StrEnum):
    """What repeating would do."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    COMPENSATABLE = "compensatable"
    IRREVERSIBLE = "irreversible"


# How an effect is declared: a member, or its name, which a type checker checks.
EffectClass: TypeAlias = Effect | Literal["pure", "idempotent", "compensatable", "irreversible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an effect is run. None means the ledger's own setting.

    effect           pure | idempotent | compensatable | irreversible; required
    undo             compensatable only: takes back what an attempt may have done; on a decorated function it may take
                     the same arguments
    reconcile        asked when the outcome is in doubt: given the entry, answers with a verdict
    not_done         exceptions that prove that the effect did nothing
    lease_seconds    how long a silent holder keeps the key; renewed while the effect runs
    retain_seconds   how long the outcome is replayed
    wait_seconds     how long a racing caller waits for the winner
    max_run_seconds  how long the claim is renewed at most
    max_result_bytes larger results are not kept
    returns          the class to rebuild a typed result as
    """

    effect: EffectClass
    undo: Callable[..., object] | None = None
    reconcile: Callable[[Entry], Verdict | Awaitable[Verdict]] | None = None
    not_done: tuple[type[BaseException], ...] = ()
    lease_seconds: float | None = None
    retain_seconds: float | None = None
    wait_seconds: float | None = None
    max_run_seconds: float = MAX_RUN_SECONDS
    max_result_bytes: int = RESULT_BYTES_MAX
    returns: type | None = None

    def __post_init__(self) -> None:
        try:
            kind = Effect(self.effect)
        except ValueError as error:
            raise InvalidOption(f"effect= is one of {', '.join(Effect)}, not {self.effect!r}") from error
        object.__setattr__(self, "effect", kind)
        if (kind is Effect.COMPENSATABLE) != (self.undo is not None):
            raise InvalidOption("undo= belongs to effect='compensatable', which needs it")
        if not isinstance(self.not_done, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in self.not_done
        ):
            raise InvalidOption("not_done= is a tuple of exception classes")
        for name, bounds in _SPANS.items():
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name), *bounds)
        size = self.max_result_bytes
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidOption(f"max_result_bytes is a whole number from 0, not {size!r}")
        for name in ("undo", "reconcile"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidOption(f"{name}= is a function, not {getattr(self, name)!r}")

    @property
    def repeatable(self) -> bool:
        return self.effect is not Effect.IRREVERSIBLE


def terms_for(effect: EffectClass, options: Options) -> Terms:
    """The terms of one call. Without options they are the same for every call of that class, and made once."""
    if not options and isinstance(effect, str):
        return _plain(effect)
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise InvalidOption(f"unknown option {min(unknown)!r}; there are {', '.join(Options.__annotations__)}")
    return Terms(effect=effect, **options)


def check_effect(function: object) -> None:
    """Refuse, before anything is claimed, what cannot be called without arguments or would do nothing when called."""
    if not callable(function):
        told = " itself, not what calling it returned" if inspect.isawaitable(function) else f", not {function!r}"
        raise InvalidOption(f"the effect is a function without arguments; pass the function{told}")
    plain: object = getattr(function, "__func__", function)  # of a method
    bound = plain is not function
    if not isinstance(plain, types.FunctionType):
        return
    code = plain.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise InvalidOption(f"{plain.__qualname__} is a generator: calling it does nothing, and it has no one result")
    needed = code.co_argcount - len(plain.__defaults__ or ()) - bound
    if needed > 0 or code.co_kwonlyargcount > len(plain.__kwdefaults__ or ()):
        raise InvalidOption(f"{plain.__qualname__} takes arguments; the effect is a function without any")


@functools.cache
def _plain(effect: EffectClass) -> Terms:
    return Terms(effect=effect)


class Options(TypedDict, total=False):
    """The options of `run` and `once` beside `effect`, as `Terms` explains them."""

    undo: Callable[..., object] | None
    reconcile: Callable[[Entry], Verdict | Awaitable[Verdict]] | None
    not_done: tuple[type[BaseException], ...]
    lease_seconds: float | None
    retain_seconds: float | None
    wait_seconds: float | None
    max_run_seconds: float
    max_result_bytes: int
    returns: type | None


def check_seconds(name: str, value: object, maximum: float, positive: bool = False) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= maximum
        or (positive and value < _TICK)
    ):
        least = "more than 0" if positive else "0"
        raise InvalidOption(f"{name} is a number of seconds from {least} to {maximum:g}, not {value!r}")
    return float(value)


# The smallest lease a clock in microseconds can express.
_TICK = 1e-6
# The options that are spans of time, with their longest and whether they must not be nothing.
_SPANS = {
    "lease_seconds": (LEASE_SECONDS_MAX, True),
    "retain_seconds": (RETAIN_SECONDS_MAX, False),
    "wait_seconds": (LEASE_SECONDS_MAX, False),
    "max_run_seconds": (RETAIN_SECONDS_MAX, False),
}


def span(name: str, seconds: float) -> int:
    """One of these options in microseconds, checked. A process uses a few, over and over."""
    return _span(name, seconds) if type(seconds) is float else int(check_seconds(name, seconds, *_SPANS[name]) * SECOND)


@functools.lru_cache
def _span(name: str, seconds: float) -> int:
    return int(check_seconds(name, seconds, *_SPANS[name]) * SECOND)
