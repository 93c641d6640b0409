"""The terms of an effect: what repeating it would do, and the time limits.

The effect class must be declared. It decides what happens to an interrupted effect:

    class          its holder disappeared         it raised
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

from onceward.core.claim import EVER, SECOND, Entry
from onceward.core.verdict import Verdict
from onceward.errors import InvalidOption
from onceward.store import PAGE_MAX

# An effect that runs longer than this counts as hung, and its claim is no longer renewed.
MAX_RUN_SECONDS = 3600.0
# The largest stored result. A larger one settles the key without a value.
RESULT_BYTES_MAX = 16 * 1024 * 1024
# How long a key is refused after its retention, if it is. Longer than clients and queues repeat a request.
REFUSE_SECONDS = 30 * 24 * 3600.0
# Limits that keep every timestamp within the range of dates that every store can represent.
LEASE_SECONDS_MAX = 30 * 24 * 3600.0
RETAIN_SECONDS_MAX = 100 * 365 * 24 * 3600.0


class Effect(enum.StrEnum):
    """Effect class: what repeating an effect would do."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    COMPENSATABLE = "compensatable"
    IRREVERSIBLE = "irreversible"


# An effect class is declared as a member or by its name, which type checkers verify.
EffectClass: TypeAlias = Effect | Literal["pure", "idempotent", "compensatable", "irreversible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms under which an effect runs. None means the ledger's own setting.

    Args:
        effect: The effect class: pure, idempotent, compensatable or irreversible.
        undo: For compensatable effects only: a function that reverses what an attempt may have done. On a decorated
            function it may take the same arguments.
        reconcile: A function that is called with the entry when it is in doubt, and returns a verdict.
        not_done: Exception classes that prove that the effect did nothing.
        lease_seconds: The time for which a silent holder keeps the claim, which is renewed while the effect runs.
        retain_seconds: The time for which the outcome is replayed.
        wait_seconds: The time for which a concurrent caller waits for the holder.
        max_run_seconds: The longest time for which the claim is renewed.
        max_result_bytes: The largest result that is stored.
        returns: The class to rebuild a typed result as.
        after_retention: The end of the retention: `"run"` runs the effect again, and `"refuse"` refuses the key with
            `errors.Expired`. It is fixed when the outcome is recorded.
        refuse_seconds: With `"refuse"`, the time for which the key is refused, counted from the end of the retention.
        retain_ever: Whether the entry never expires. Its result is still dropped after `retain_seconds`, and later
            calls raise `OutcomeNotKept`. Each key then occupies a row forever.

    Raises:
        InvalidOption: If a field has an invalid value.
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
    after_retention: Literal["run", "refuse"] = "run"
    refuse_seconds: float = REFUSE_SECONDS
    retain_ever: bool = False

    def __post_init__(self) -> None:
        try:
            kind = Effect(self.effect)
        except ValueError as error:
            raise InvalidOption(f"effect= must be one of {', '.join(Effect)}, not {self.effect!r}") from error
        object.__setattr__(self, "effect", kind)
        if (kind is Effect.COMPENSATABLE) != (self.undo is not None):
            raise InvalidOption("undo= is required for effect='compensatable' and not allowed for any other")
        if not isinstance(self.not_done, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in self.not_done
        ):
            raise InvalidOption("not_done= must be a tuple of exception classes")
        for name, bounds in _SPANS.items():
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name), *bounds)
        size = self.max_result_bytes
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidOption(f"max_result_bytes must be a whole number of at least 0, not {size!r}")
        if self.after_retention not in ("run", "refuse"):
            raise InvalidOption(f"after_retention= must be 'run' or 'refuse', not {self.after_retention!r}")
        if self.retain_ever and self.after_retention == "refuse":
            raise InvalidOption("retain_ever= and after_retention='refuse' exclude each other: the entry never expires")
        for name in ("undo", "reconcile"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidOption(f"{name}= must be a function, not {getattr(self, name)!r}")

    @property
    def refuse(self) -> int:
        """The `Move.refuse` of an outcome that is recorded under these terms."""
        return refuse_of(
            self.refuse_seconds if self.after_retention == "refuse" else None, retain_ever=self.retain_ever
        )

    @property
    def repeatable(self) -> bool:
        """True if the effect may run again after its holder disappeared."""
        return self.effect is not Effect.IRREVERSIBLE


def terms_for(effect: EffectClass, options: RunOptions) -> Terms:
    """Return the terms of one call. Without options, all calls of an effect class share one object."""
    if not options and isinstance(effect, str):
        return _plain(effect)
    unknown = options.keys() - RunOptions.__annotations__.keys()
    if unknown:
        raise InvalidOption(f"unknown option {min(unknown)!r}; the options are {', '.join(RunOptions.__annotations__)}")
    return Terms(effect=effect, **options)


def check_effect(function: object) -> None:
    """Refuse an effect that cannot be called without arguments, or is a generator, before anything is claimed."""
    if not callable(function):
        hint = " itself, not the coroutine that it returned" if inspect.isawaitable(function) else f", not {function!r}"
        raise InvalidOption(f"the effect must be a function without arguments; pass the function{hint}")
    plain: object = getattr(function, "__func__", function)  # the function of a method
    bound = plain is not function
    if not isinstance(plain, types.FunctionType):
        return
    code = plain.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise InvalidOption(
            f"{plain.__qualname__} is a generator: calling it does nothing, and it has no single result"
        )
    needed = code.co_argcount - len(plain.__defaults__ or ()) - bound
    if needed > 0 or code.co_kwonlyargcount > len(plain.__kwdefaults__ or ()):
        raise InvalidOption(f"{plain.__qualname__} needs arguments; the effect must be a function without arguments")


@functools.cache
def _plain(effect: EffectClass) -> Terms:
    return Terms(effect=effect)


class RunOptions(TypedDict, total=False):
    """The options of `run` and `once`, without `effect`. See `Terms`."""

    undo: Callable[..., object] | None
    reconcile: Callable[[Entry], Verdict | Awaitable[Verdict]] | None
    not_done: tuple[type[BaseException], ...]
    lease_seconds: float | None
    retain_seconds: float | None
    wait_seconds: float | None
    max_run_seconds: float
    max_result_bytes: int
    returns: type | None
    after_retention: Literal["run", "refuse"]
    refuse_seconds: float


def check_seconds(name: str, value: object, maximum: float, positive: bool = False) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= maximum
        or (positive and value < _TICK)
    ):
        least = "more than 0" if positive else "0"
        raise InvalidOption(f"{name} must be a number of seconds from {least} to {maximum:g}, not {value!r}")
    return float(value)


def check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE_MAX:
        raise InvalidOption(f"limit must be 1 to {PAGE_MAX}, not {limit!r}")


# The shortest lease that a clock in microseconds can express.
_TICK = 1e-6
# The options that are durations, with their maximum and whether they must be more than 0.
_SPANS = {
    "lease_seconds": (LEASE_SECONDS_MAX, True),
    "retain_seconds": (RETAIN_SECONDS_MAX, False),
    "refuse_seconds": (RETAIN_SECONDS_MAX, True),
    "wait_seconds": (LEASE_SECONDS_MAX, False),
    "max_run_seconds": (RETAIN_SECONDS_MAX, False),
}


def span(name: str, seconds: float) -> int:
    """Check a duration option and return it in microseconds. A process uses few values, so they are cached."""
    return _span(name, seconds) if type(seconds) is float else int(check_seconds(name, seconds, *_SPANS[name]) * SECOND)


@functools.lru_cache
def _span(name: str, seconds: float) -> int:
    return int(check_seconds(name, seconds, *_SPANS[name]) * SECOND)


def refuse_of(seconds: float | None, *, retain_ever: bool) -> int:
    """Return the `Move.refuse` of an outcome: what happens to its key after the retention."""
    if retain_ever:
        return EVER
    return 0 if seconds is None else span("refuse_seconds", seconds)
