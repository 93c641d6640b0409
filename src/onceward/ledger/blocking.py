"""The ledger for synchronous code: the calling thread steps the ledger's own coroutines.

The methods have no synchronous twins. Where a coroutine would await a store future, it yields the future to
`wait`, and the thread waits for it. Threads share batches with each other and with every event loop of the process.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from onceward.ledger.ledger import Ledger
from onceward.ledger.run import SCOPE
from onceward.ledger.run import run as run_once
from onceward.ledger.terms import EffectClass, RunOptions, Terms, terms_for
from onceward.store.dispatch.future import wait as wait  # noqa: PLC0414  # exported

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Ledger, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking, P], T]:
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait(method(self.ledger, *args, **kwargs))

    return functools.update_wrapper(call, method)


class Blocking:
    """The methods of a ledger for synchronous code: `ledger.blocking`.

    Each method takes the same arguments and raises the same exceptions as the coroutine of the same name.

    Args:
        ledger: The ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    begin = _blocking(Ledger.begin)
    renew = _blocking(Ledger.renew)
    settle = _blocking(Ledger.settle)
    fail = _blocking(Ledger.fail)
    doubt = _blocking(Ledger.doubt)
    release = _blocking(Ledger.release)
    lapse = _blocking(Ledger.lapse)
    resolve = _blocking(Ledger.resolve)
    abandon = _blocking(Ledger.abandon)
    forget = _blocking(Ledger.forget)
    append = _blocking(Ledger.append)
    mark = _blocking(Ledger.mark)
    read = _blocking(Ledger.read)
    scan = _blocking(Ledger.scan)
    chunks = _blocking(Ledger.chunks)
    body = _blocking(Ledger.body)
    wait = _blocking(Ledger.wait)
    purge = _blocking(Ledger.purge)
    doubt_lapsed = _blocking(Ledger.doubt_lapsed)

    @overload
    def run(
        self, key: str, effect_fn: Callable[[], Awaitable[T]], *,
        effect: EffectClass, fingerprint: object = None, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip

    @overload
    def run(
        self, key: str, effect_fn: Callable[[], T], *,
        effect: EffectClass, fingerprint: object = None, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip

    def run(
        self,
        key: str,
        effect_fn: Callable[[], Any],
        *,
        effect: EffectClass,
        fingerprint: object = None,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Run an effect once for its key, like `Ledger.run`. An `async def` runs on a new event loop.

        Args:
            key: The name of the work.
            effect_fn: A function without arguments, `def` or `async def`, that has the effect and returns its result.
            effect: The effect class: pure, idempotent, compensatable or irreversible.
            fingerprint: The arguments of the work. The same key with other arguments raises `KeyReused`.
            options: The other fields of `onceward.ledger.terms.Terms`.

        Returns:
            The result of the effect, from running it now or as it was recorded.

        Raises:
            NotDone: If `effect_fn` is an `async def` and this thread runs an event loop.
            OncewardError: The exceptions of `Ledger.run`.
        """
        return self.run_terms(key, effect_fn, fingerprint, terms_for(effect, options))

    def run_terms(
        self, key: str, effect: Callable[[], Any], fingerprint: object, terms: Terms, scope: str = SCOPE
    ) -> Any:
        """Run an effect like `run`, with terms that already exist."""
        return wait(run_once(self.ledger, key, effect, fingerprint=fingerprint, terms=terms, scope=scope))
