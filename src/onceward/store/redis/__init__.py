"""The Redis store, also for Valkey and for a cluster of either: one script call for each write, one pipeline for a batch.

Not here: how callers share a batch (`store/dispatch/`).
Start with `store.py`. The script is `commit.lua`. Needs the extra `redis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward.store.redis.store import RedisStore

__all__ = ["REDIS_SCHEMES", "RedisStore", "connection", "store"]

# Valkey speaks Redis's protocol, so its schemes are other names for the same.
REDIS_SCHEMES = frozenset(
    f"{server}{tls}{kind}" for server in ("redis", "valkey") for tls in ("", "s") for kind in ("", "+cluster")
)


def __getattr__(name: str) -> type[RedisStore]:
    """Import `RedisStore` on first use, because other modules of this package are used without the driver."""
    if name != "RedisStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onceward.store.redis.store import RedisStore  # noqa: PLC0415

    return RedisStore
