"""The ledger for synchronous code. The verbs are the ledger's own coroutines, stepped by the calling thread.

There are no synchronous twins: a coroutine that would await an answer hands it over here, and the thread waits for
it. Threads share batches with each other and with every event loop of the process.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from onceward.ledger import Ledger
from onceward.run import SCOPE
from onceward.run import run as run_once
from onceward.store.pending import Pending, driving
from onceward.terms import Effect, Options, Terms, terms_for

P = ParamSpec("P")
T = TypeVar("T")


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one of the ledger's coroutines to its end on this thread."""
    error: BaseException | None = None
    with driving():
        while True:
            try:
                pending = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return cast("T", stop.value)
            error = None
            try:
                cast("Pending[object]", pending).block()
            except BaseException as interrupt:  # noqa: BLE001  # handed to the coroutine, which decides
                error = interrupt


def _waits(verb: Callable[Concatenate[Ledger, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking, P], T]:
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait(verb(self.ledger, *args, **kwargs))

    return functools.update_wrapper(call, verb)


class Blocking:
    """`ledger.blocking`: every verb, waiting instead of awaited."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    begin = _waits(Ledger.begin)
    renew = _waits(Ledger.renew)
    settle = _waits(Ledger.settle)
    fail = _waits(Ledger.fail)
    doubt = _waits(Ledger.doubt)
    release = _waits(Ledger.release)
    lapse = _waits(Ledger.lapse)
    resolve = _waits(Ledger.resolve)
    abandon = _waits(Ledger.abandon)
    append = _waits(Ledger.append)
    read = _waits(Ledger.read)
    scan = _waits(Ledger.scan)
    chunks = _waits(Ledger.chunks)
    body = _waits(Ledger.body)
    wait = _waits(Ledger.wait)
    purge = _waits(Ledger.purge)
    doubt_lapsed = _waits(Ledger.doubt_lapsed)

    @overload
    def run(
        self, key: str, effect_fn: Callable[[], Awaitable[T]], *,
        effect: Effect | str, fingerprint: object = None, **options: Unpack[Options],
    ) -> T: ...  # fmt: skip

    @overload
    def run(
        self, key: str, effect_fn: Callable[[], T], *,
        effect: Effect | str, fingerprint: object = None, **options: Unpack[Options],
    ) -> T: ...  # fmt: skip

    def run(
        self,
        key: str,
        effect_fn: Callable[[], Any],
        *,
        effect: Effect | str,
        fingerprint: object = None,
        **options: Unpack[Options],
    ) -> Any:
        """Run an effect once for its key; an `async def` runs on an event loop of its own."""
        return self.run_terms(key, effect_fn, fingerprint, terms_for(effect, options))

    def run_terms(
        self, key: str, effect: Callable[[], Any], fingerprint: object, terms: Terms, scope: str = SCOPE
    ) -> Any:
        """As `run`, with the terms put together beforehand."""
        return wait(run_once(self.ledger, key, effect, fingerprint=fingerprint, terms=terms, scope=scope))
