"""What a process does around a fork, on systems that have forks."""

from __future__ import annotations

import os
from collections.abc import Callable


def at_fork(**calls: Callable[[], object]) -> None:
    """As `os.register_at_fork`, with `before`, `after_in_parent` and `after_in_child`. Windows forks nothing."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**calls)
