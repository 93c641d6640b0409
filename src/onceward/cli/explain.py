"""`ingest explain`: how one message is parsed, classified and keyed, and what an insert would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from onceward.cli.local.ingest import has_data
from onceward.core.canonical import Json
from onceward.errors import InvalidInput, OncewardError
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.ingest.backfill.detect import open_source
from onceward.hub.ingest.backfill.json_lines import read_json
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.entries.preview import preview
from onceward.hub.ingest.entries.result import error_json
from onceward.hub.ingest.entries.schema import active_schema, schema_named
from onceward.hub.ingest.explain import how_keyed, what_follows
from onceward.hub.ingest.payload import Payload

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
    """Explain one message: its `entry`, its `keys` and the `insert`, each an object, in the order of processing."""
    payload = _first(path, Normalizer(content_type, form, thread_policy), kind, piped)
    entry = {name: value for name, value in payload.items() if name not in _KEYS}
    keys = {name: payload.get(name) for name in _KEYS}
    return {
        "entry": entry,
        "keys": {**keys, "how": how_keyed(payload)},
        "insert": _insert(config, payload, schema),
    }


def _first(path: Path, normalizer: Normalizer, kind: str | None, piped: BinaryIO) -> Payload:
    if str(path) == "-":
        return normalizer.line(read_json(piped.read()))
    if path.suffix == ".json" and kind is None:
        # One message over several lines, unless the file is a Telegram export.
        try:
            value = read_json(path.read_bytes())
        except InvalidInput:
            value = None
        if isinstance(value, dict) and not {"messages", "chats"} & value.keys():
            return normalizer.line(value)
    for item in open_source(path, normalizer, kind).items(None):
        payload = item.payload()
        if payload is not None:
            return payload
    raise InvalidInput(f"{path} contains no message")


def _insert(config: Config, payload: Payload, schema: str | None) -> dict[str, Json]:
    if not has_data(config):
        return {"schema": None, "because": f"not checked: {str(config.data_folder)!r} does not contain a database"}
    with data_folder.opened(config) as database, database.read() as tx:
        found = active_schema(tx) if schema is None else schema_named(schema)
        try:
            previewed = preview(tx, found, payload)
        except OncewardError as error:
            return {"schema": found.name, "action": "failed", "error": error_json(error)}
    shown: dict[str, Json] = {"schema": found.name, "action": previewed.action, "changed": previewed.changed}
    if previewed.row is not None and previewed.row.get("entry_id") is not None:
        shown["entry_id"] = previewed.row["entry_id"]
    if previewed.outcome.changed:
        shown["columns"] = list(previewed.outcome.changed)
    return {**shown, "matched_on": previewed.matched_on, "because": what_follows(previewed)}
