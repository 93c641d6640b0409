"""Database of the hub: tables, migrations, transactions, the writer that shares them, and lookups without one.

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
