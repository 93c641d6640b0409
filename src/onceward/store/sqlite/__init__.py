"""The SQLite store: one file, with the claim state machine inside each transaction.

Not here: how callers share a batch (`store/dispatch/`), and the hub's own database (`hub/db/`).
Start with `store.py`. The tables are in `schema.sql`.
"""

from onceward.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "errors", "schema", "store"]
