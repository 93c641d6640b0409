"""The numbers of the ledger's layout in Redis. A store of schema 1 becomes one of schema 2 by having them.

Nothing else is to be done: a field that an entry does not have reads as nothing, and the index of claims that go in doubt
is filled by the process that asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from onceward.errors import SchemaTooNew
from onceward.store import OLDEST_SCHEMA, SCHEMA_VERSION, Schema
from onceward.store.redis_pack import pack
from onceward.store.redis_wire import Wire


def check_schema(wire: Wire, prefix: str) -> None:
    """Look first. Of many processes that open a store at once, the first one's numbers stay."""
    names = [f"{prefix}:{{00}}:{name}" for name in ("schema", "readable_from", "upgraded_to")]
    schema = _schema(wire, names)
    schema.check()
    if not schema.is_current:
        numbers = (OLDEST_SCHEMA, OLDEST_SCHEMA, SCHEMA_VERSION)
        wire.send([(0, pack("SET", *one, "NX")) for one in zip(names, numbers, strict=True)])
        _schema(wire, names).check()


def _schema(wire: Wire, names: Sequence[str]) -> Schema:
    found = cast("list[bytes | None]", wire.send([(0, pack("GET", name)) for name in names]))
    if not all(one is None or one.isdigit() for one in found):
        raise SchemaTooNew("the schema numbers of this Redis store cannot be read: upgrade Onceward")
    version, *newer = (None if one is None else int(one) for one in found)
    return Schema() if version is None else Schema.stored(version, *newer)
