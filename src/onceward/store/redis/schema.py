"""The schema numbers of a ledger in Redis. Writing them upgrades a store from schema 1 to schema 2.

Nothing else has to be changed: a missing field of an entry reads as nil, and a process that lists claims to put in
doubt first fills their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceward.errors import SchemaTooNew
from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, Schema
from onceward.store.redis.connection import BucketCommand, RedisConnection
from onceward.store.redis.resp import encode


def check_schema(connection: RedisConnection, prefix: str) -> None:
    """Check the schema numbers, and write them if needed. If many processes do so at once, the first one wins."""
    names = [f"{prefix}:{{00}}:{name}" for name in ("schema", "readable_from", "upgraded_to")]
    schema = _schema(connection, names)
    schema.check()
    if not schema.is_current:
        numbers = (OLDEST_SCHEMA, OLDEST_SCHEMA, SCHEMA_VERSION)
        connection.send([(0, encode("SET", *one, "NX")) for one in zip(names, numbers, strict=True)])
        _schema(connection, names).check()


def require_new_schema(prefix: str) -> list[BucketCommand]:
    """Return the commands that keep out processes of schema 1, before the first write that they would damage."""
    # A process of this schema cannot open a store that needs a newer one, so the numbers never decrease.
    return [(0, encode("SET", f"{prefix}:{{00}}:{name}", SCHEMA_VERSION)) for name in ("readable_from", "schema")]


def _schema(connection: RedisConnection, names: Sequence[str]) -> Schema:
    found = cast("list[bytes | None]", connection.send([(0, encode("GET", name)) for name in names]))
    if not all(one is None or one.isdigit() for one in found):
        raise SchemaTooNew("the schema numbers of this Redis store are not valid numbers; upgrade Onceward")
    version, *newer = (None if one is None else int(one) for one in found)
    return Schema() if version is None else Schema.stored(version, *newer)
