"""Backend of ingested entries: a running hub, over HTTP."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onceward.cli.backend import JsonObject
from onceward.errors import Conflict, InvalidOption
from onceward.hub.client import BlockingHub
from onceward.hub.client.connection import HubOptions
from onceward.hub.client.ingest import EntryInserted
from onceward.hub.ingest.backfill.run import Result
from onceward.hub.ingest.payload import Payload

# The hub writes a chunk in one transaction, which may wait for other writers.
_DEADLINE_SECONDS = 120.0
_SCHEMAS = ("pkm", "pkm_test")


@contextmanager
def remote_ingest(url: str, token: str | None, options: HubOptions | None = None) -> Iterator[RemoteIngest]:
    own: HubOptions = {"deadline_seconds": _DEADLINE_SECONDS}
    own.update(options or {})
    with BlockingHub(url, token, **own) as hub:
        yield RemoteIngest(hub, url)


class RemoteIngest:
    """`onceward.cli.backfill.IngestBackend` over HTTP."""

    def __init__(self, hub: BlockingHub, url: str) -> None:
        self._hub = hub
        self.purpose = url.rstrip("/")

    @property
    def state_folder(self) -> Path:
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return Path(state).expanduser() / "onceward" / "backfill"

    def schema(self, name: str | None) -> str:
        active = _SCHEMAS[self._hub.ingest.test_mode()]
        if name not in (None, active):
            raise InvalidOption(
                f"the hub's active schema is {active}, not {name}; change it with `onceward ingest test-mode`,"
                " or use --data-dir instead of --hub"
            )
        return active

    def sink(self, schema: str, *, dry_run: bool) -> RemoteSink:
        if dry_run:
            raise InvalidOption("--dry-run needs the database itself; use --data-dir instead of --hub")
        return RemoteSink(self._hub, schema)

    def policies(self, schema: str | None) -> list[JsonObject]:
        return [dataclasses.asdict(policy) for policy in self._hub.ingest.policies(schema)]

    def test_mode(self) -> bool:
        return self._hub.ingest.test_mode()

    def set_test_mode(self, enabled: bool) -> None:
        self._hub.ingest.set_test_mode(enabled)


class RemoteSink:
    """`onceward.hub.ingest.backfill.run.Sink` over HTTP."""

    def __init__(self, hub: BlockingHub, schema: str) -> None:
        self._hub = hub
        self._schema = schema

    def insert(self, payloads: Sequence[Payload]) -> list[Result]:
        inserted = self._hub.ingest.insert_entries(payloads)
        if any(one.schema != self._schema for one in inserted):
            raise Conflict(
                f"the hub's test mode was changed during the run: the last {len(inserted)} messages were not stored in"
                f" {self._schema}. Change it back and run the command again"
            )
        return [_result(one) for one in inserted]


def _result(one: EntryInserted) -> Result:
    if one.error is not None:
        return Result("failed", one.error)
    if one.action == "updated" and not one.changed:
        return Result("stale" if one.stale else "unchanged")
    return Result(one.action)
