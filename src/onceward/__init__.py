"""Onceward makes every retry safe. The public names, nothing else."""

from typing import TYPE_CHECKING

from onceward import errors
from onceward.core import verdict
from onceward.http.asgi import IdempotencyMiddleware
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.run import current_claim
from onceward.store.open import open_store

__all__ = ["IdempotencyMiddleware", "Ledger", "current_claim", "errors", "open_ledger", "open_store", "verdict"]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """`__version__`, read from the package's metadata when it is asked for."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version  # noqa: PLC0415  # a tenth of the time of importing everything else

        return version("onceward")
