"""Onceward makes every retry safe. The public names, nothing else."""

from onceward import errors
from onceward.core import verdict
from onceward.http.asgi import IdempotencyMiddleware
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.run import current_claim
from onceward.store.open import open_store

__all__ = ["IdempotencyMiddleware", "Ledger", "current_claim", "errors", "open_ledger", "open_store", "verdict"]
