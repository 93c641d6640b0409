"""Backend of ingested entries: the database of a hub, opened directly, whether or not the hub is running.

`explain_message` shows how one message is parsed, classified and keyed, and what an insert would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from onceward.cli.backend import JsonObject
from onceward.core.canonical import Json
from onceward.errors import InvalidInput, OncewardError
from onceward.hub.audit.actor import local_actor
from onceward.hub.audit.log import append
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database
from onceward.hub.ingest.backfill.detect import open_source
from onceward.hub.ingest.backfill.json_lines import read_json
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.run import Result, Sink, result_of
from onceward.hub.ingest.entries.insert import insert_entries
from onceward.hub.ingest.entries.policy import list_policies
from onceward.hub.ingest.entries.preview import preview, preview_entries
from onceward.hub.ingest.entries.result import error_json
from onceward.hub.ingest.entries.schema import EntrySchema, active_schema, schema_named, set_test_mode, test_mode
from onceward.hub.ingest.explain import how_keyed, what_follows
from onceward.hub.ingest.payload import Payload

_KEY_FIELDS = ("idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary")


@contextmanager
def local_ingest(config: Config) -> Iterator[LocalIngest]:
    with data_folder.opened(config) as database:
        yield LocalIngest(config, database)


class LocalIngest:
    """`onceward.cli.backfill.IngestBackend` on a database."""

    def __init__(self, config: Config, database: Database) -> None:
        self._config = config
        self._database = database

    @property
    def state_folder(self) -> Path:
        return self._config.data_folder / "backfill"

    @property
    def purpose(self) -> str:
        return self._config.database_url

    def schema(self, name: str | None) -> str:
        return self._schema(name).name

    def sink(self, schema: str, *, dry_run: bool) -> Sink:
        found = schema_named(schema)
        return DrySink(self._database, found) if dry_run else LocalSink(self._database, found)

    def policies(self, schema: str | None) -> list[JsonObject]:
        found = self._schema(schema)
        with self._database.read() as tx:
            return [policy.json() for policy in list_policies(tx, found)]

    def test_mode(self) -> bool:
        with self._database.read() as tx:
            return test_mode(tx)

    def set_test_mode(self, enabled: bool) -> None:
        with self._database.write() as tx:
            set_test_mode(tx, enabled)
            append(tx, local_actor(), "test_mode.put", None, {"enabled": enabled})

    def _schema(self, name: str | None) -> EntrySchema:
        if name is not None:
            return schema_named(name)
        with self._database.read() as tx:
            return active_schema(tx)


class LocalSink:
    """`onceward.hub.ingest.backfill.run.Sink` into a database."""

    def __init__(self, database: Database, schema: EntrySchema) -> None:
        self._database = database
        self._schema = schema

    def insert(self, payloads: Sequence[Payload]) -> list[Result]:
        return [result_of(one) for one in insert_entries(self._database, self._schema, payloads)]


class DrySink:
    """`onceward.hub.ingest.backfill.run.Sink` that writes nothing, and remembers the keys of earlier chunks instead."""

    def __init__(self, database: Database, schema: EntrySchema) -> None:
        self._database = database
        self._schema = schema
        with database.read() as tx:
            self._actions = {policy.policy_key: policy.conflict_action for policy in list_policies(tx, schema)}
        self._seen: set[tuple[Json, str, Json]] = set()

    def insert(self, payloads: Sequence[Payload]) -> list[Result]:
        with self._database.read() as tx:
            found = preview_entries(tx, self._schema, payloads)
        results = [self._again(payload, result_of(one)) for payload, one in zip(payloads, found, strict=True)]
        self._seen.update(key for payload in payloads for key in _keys(payload))
        return results

    def _again(self, payload: Payload, result: Result) -> Result:
        policy = payload.get("idempotency_policy_key")
        if result.action != "inserted" or self._seen.isdisjoint(_keys(payload)[:1]):
            return result
        return Result("skipped" if self._actions.get(str(policy)) == "skip" else "updated")


def _keys(payload: Payload) -> list[tuple[Json, str, Json]]:
    policy = payload.get("idempotency_policy_key")
    named = ((name, payload.get(f"idempotency_key_{name}")) for name in ("primary", "secondary"))
    return [(policy, name, key) for name, key in named if key is not None]


def explain_message(
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
    payload = _first_payload(path, Normalizer(content_type, form, thread_policy), kind, piped)
    entry = {name: value for name, value in payload.items() if name not in _KEY_FIELDS}
    keys = {name: payload.get(name) for name in _KEY_FIELDS}
    return {
        "entry": entry,
        "keys": {**keys, "how": how_keyed(payload)},
        "insert": _explain_insert(config, payload, schema),
    }


def _first_payload(path: Path, normalizer: Normalizer, kind: str | None, piped: BinaryIO) -> Payload:
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


def _explain_insert(config: Config, payload: Payload, schema: str | None) -> dict[str, Json]:
    if not data_folder.has_data(config):
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
