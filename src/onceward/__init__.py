"""Onceward makes every retry safe. This module exports the public names and contains nothing else.

The library consists of core, store, ledger, http, tools, integrations, reconcile and testing. The server is hub and cli;
`turns` re-exports part of it.
Start with `ledger/` for the idea, or with `http/` for the middleware.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from onceward import errors
from onceward import old_names as old_names
from onceward.core import verdict
from onceward.ledger.ledger import Ledger
from onceward.ledger.open import open_ledger
from onceward.ledger.run import current_claim
from onceward.store.open import open_store

__all__ = ["IdempotencyMiddleware", "Ledger", "current_claim", "errors", "open_ledger", "open_store", "verdict"]

if TYPE_CHECKING:
    from onceward import http as http
    from onceward.http.middleware.asgi import IdempotencyMiddleware

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Load what not every program needs on first use: the middleware, and the metadata with the version."""
        match name:
            case "IdempotencyMiddleware":
                from onceward.http.middleware.asgi import IdempotencyMiddleware  # noqa: PLC0415  # a third of the time

                return IdempotencyMiddleware
            case "http":
                return import_module("onceward.http")
            case "__version__":
                from importlib.metadata import version  # noqa: PLC0415  # a tenth of the time

                return version("onceward")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
