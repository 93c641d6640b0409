"""Call a handler directly in a test, without the middleware that guards it in production."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceward.http.keyed.operation import assume_guarded


@contextmanager
def guarded() -> Iterator[None]:
    """Let `idempotency(request)` return an operation without a key instead of raising `NotGuarded`.

        with guarded():
            response = pay(request)

    Yields:
        None. The setting applies until the block ends.
    """
    token = assume_guarded.set(True)
    try:
        yield
    finally:
        assume_guarded.reset(token)
