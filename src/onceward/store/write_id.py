"""Write ids: a random prefix for each process and a counter, which is cheaper than a random id for each write."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator

from onceward.store.forks import at_fork


def _start() -> tuple[str, Iterator[int]]:
    return secrets.token_hex(8), itertools.count(1)


_prefix, _count = _start()


def write_id() -> str:
    """Return an id that is unique among all processes.

    It consists of 64 random bits, drawn at start and after each fork, and a number.
    """
    return f"{_prefix}.{next(_count):x}"


def _after_fork() -> None:
    global _prefix, _count  # a forked child must not repeat its parent's ids
    _prefix, _count = _start()


at_fork(after_in_child=_after_fork)
