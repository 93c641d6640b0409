"""The PostgreSQL store: one call of one function commits a batch.

Not here: how callers share a batch (`store/dispatch/`), and the hub's own database (`hub/db/`).
Start with `store.py`. The function is in `commit.sql`, the tables are in `schema.sql`. Needs the extra `postgres`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.store.postgres.store import PostgresStore

__all__ = ["PostgresStore", "driver", "errors", "pooler", "roles", "store", "upgrade"]


def __getattr__(name: str) -> type[PostgresStore]:
    """Import `PostgresStore` on first use, because `errors` is also used where the driver is not installed."""
    if name != "PostgresStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onceward.store.postgres.store import PostgresStore  # noqa: PLC0415

    return PostgresStore
