"""Onceward makes every retry safe. This module exports the public names and contains nothing else.

The library consists of core, store, ledger, http, tools, integrations and testing. The server is hub and cli.
Start with `ledger/` for the idea, or with `http/` for the middleware.
"""

from typing import TYPE_CHECKING

from onceward import errors
from onceward import old_names as old_names
from onceward.core import verdict
from onceward.http.middleware.asgi import IdempotencyMiddleware
from onceward.ledger.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.ledger.run import current_claim
from onceward.store.open import open_store

__all__ = ["IdempotencyMiddleware", "Ledger", "current_claim", "errors", "open_ledger", "open_store", "verdict"]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Return `__version__`, read from the package metadata on first use."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version  # noqa: PLC0415  # takes a tenth of the package's import time

        return version("onceward")
