"""Backend of ingested entries: the database of a hub, opened directly, whether or not the hub is running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onceward.cli.backend import JsonObject
from onceward.core.canonical import Json
from onceward.hub.audit.actor import local_actor
from onceward.hub.audit.log import append
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database
from onceward.hub.ingest.backfill.run import Result, Sink, result_of
from onceward.hub.ingest.entries.insert import insert_entries
from onceward.hub.ingest.entries.policy import list_policies
from onceward.hub.ingest.entries.preview import preview_entries
from onceward.hub.ingest.entries.schema import EntrySchema, active_schema, schema_named, set_test_mode, test_mode
from onceward.hub.ingest.payload import Payload


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


def has_data(config: Config) -> bool:
    return bool(config.hub.database) or (config.data_folder / "hub.db").exists()
