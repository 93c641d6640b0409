"""The ledger: claim a key, run the effect, settle the outcome. HTTP, tools and the hub are built on it.

Not here: the claim state machine (`core/claim.py`), and how a write reaches a store (`store/dispatch/`).
Start with `ledger.py` for the single operations, then `run.py`, which combines them.
"""

from onceward.ledger.ledger import Busy, Claim, Entry, Expired, InDoubt, Ledger, Mismatch, Outcome, Replay, Status

__all__ = [
    "Busy",
    "Claim",
    "Entry",
    "Expired",
    "InDoubt",
    "Ledger",
    "Mismatch",
    "Outcome",
    "Replay",
    "Status",
    "blocking",
    "current_claim",
    "doubts",
    "internals",
    "ledger",
    "open",
    "recovery",
    "run",
    "store_time",
    "terms",
    "transaction",
]
