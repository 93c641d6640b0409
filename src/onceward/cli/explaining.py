"""How one message is read, told apart and keyed, and what an insert would do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from onceward.cli.stored_ingest import has_data
from onceward.core.canonical import Json
from onceward.errors import InvalidInput, OncewardError
from onceward.hub import data
from onceward.hub.config import Config
from onceward.ingest.backfill.detect import open_source
from onceward.ingest.backfill.json_lines import read_json
from onceward.ingest.backfill.normalizing import Normalizing
from onceward.ingest.explain import how_keyed, what_follows
from onceward.ingest.inserted import error_json
from onceward.ingest.payload import Payload
from onceward.ingest.preview import preview
from onceward.ingest.schema import active_schema, schema_named

_KEYS = ("idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary")


def explained(
    config: Config,
    path: Path,
    *,
    piped: BinaryIO,
    kind: str | None,
    form: str | None,
    content_type: str | None,
    thread_policy: str,
    schema: str | None,
) -> dict[str, Any]:
    """`entry`, `keys`, `insert`: each an object, in the order in which they come about."""
    payload = _first(path, Normalizing(content_type, form, thread_policy), kind, piped)
    entry = {name: value for name, value in payload.items() if name not in _KEYS}
    keys = {name: payload.get(name) for name in _KEYS}
    return {
        "entry": entry,
        "keys": {**keys, "how": how_keyed(payload)},
        "insert": _insert(config, payload, schema),
    }


def _first(path: Path, normalizing: Normalizing, kind: str | None, piped: BinaryIO) -> Payload:
    if str(path) == "-":
        return normalizing.line(read_json(piped.read()))
    if path.suffix == ".json" and kind is None:
        # One message over many lines, unless it is an export.
        try:
            value = read_json(path.read_bytes())
        except InvalidInput:
            value = None
        if isinstance(value, dict) and not {"messages", "chats"} & value.keys():
            return normalizing.line(value)
    for item in open_source(path, normalizing, kind).items(None):
        payload = item.payload()
        if payload is not None:
            return payload
    raise InvalidInput(f"{path} has no message")


def _insert(config: Config, payload: Payload, schema: str | None) -> dict[str, Json]:
    if not has_data(config):
        return {"schema": None, "because": f"there is no database in {str(config.data_folder)!r} to look at"}
    with data.opened(config) as database, database.read() as tx:
        found = active_schema(tx) if schema is None else schema_named(schema)
        try:
            told = preview(tx, found, payload)
        except OncewardError as error:
            return {"schema": found.name, "action": "failed", "error": error_json(error)}
    shown: dict[str, Json] = {"schema": found.name, "action": told.action, "changed": told.changed}
    if told.row is not None and told.row.get("entry_id") is not None:
        shown["entry_id"] = told.row["entry_id"]
    if told.outcome.changed:
        shown["columns"] = list(told.outcome.changed)
    return {**shown, "matched_on": told.matched_on, "because": what_follows(told)}
