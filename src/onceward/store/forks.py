"""Callbacks around a fork, on systems that have forks."""

from __future__ import annotations

import os
from collections.abc import Callable


def at_fork(**calls: Callable[[], object]) -> None:
    """Register callbacks like `os.register_at_fork`. On Windows, which has no forks, do nothing."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**calls)
