"""The dispatcher: one queue and one I/O thread for each store in a process, with batches that all callers share.

Not here: what a write means (`core/claim.py`), and how a store commits a batch (`store/sqlite/` and its siblings).
Start with `batcher.py`. `pipeline.py` lets an event loop send batches without a thread switch.
"""

from onceward.store.dispatch.batcher import Batcher

__all__ = ["Batcher", "batcher", "future", "inflight", "queue", "renewal"]
