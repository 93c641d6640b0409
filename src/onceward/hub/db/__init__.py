"""Database of the hub: tables, migrations, and the two ways to open a transaction.

Not here: the ledger's stores (`store/`), which have their own connections and files.
Start with `engine.py`.
"""

__all__ = [
    "append",
    "engine",
    "lookup",
    "migrate",
    "page",
    "raw_sql",
    "request_key",
    "short_id",
    "tables",
    "timestamps",
    "writer",
]
