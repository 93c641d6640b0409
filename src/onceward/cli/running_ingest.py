"""The entries of a hub that runs, asked over HTTP."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onceward.cli.target import Shown
from onceward.errors import Conflict, InvalidOption
from onceward.hub.client import BlockingHub
from onceward.hub.client.ingest import EntryInserted
from onceward.ingest.backfill.run import Result
from onceward.ingest.payload import Payload

# A chunk is written in one transaction, for which others may have to be waited for.
_DEADLINE_SECONDS = 120.0
_SCHEMAS = ("pkm", "pkm_test")


@contextmanager
def running_ingest(url: str, token: str | None) -> Iterator[RunningIngest]:
    with BlockingHub(url, token, deadline_seconds=_DEADLINE_SECONDS) as hub:
        yield RunningIngest(hub, url)


class RunningIngest:
    """As `onceward.cli.backfilling.Place`."""

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
                " or work on the data folder instead of --hub"
            )
        return active

    def sink(self, schema: str, *, dry_run: bool) -> RunningSink:
        if dry_run:
            raise InvalidOption("--dry-run looks at the database; work on the data folder instead of --hub")
        return RunningSink(self._hub, schema)

    def policies(self, schema: str | None) -> list[Shown]:
        return [dataclasses.asdict(policy) for policy in self._hub.ingest.policies(schema)]

    def test_mode(self) -> bool:
        return self._hub.ingest.test_mode()

    def set_test_mode(self, enabled: bool) -> None:
        self._hub.ingest.set_test_mode(enabled)


class RunningSink:
    """As `onceward.ingest.backfill.run.Sink`."""

    def __init__(self, hub: BlockingHub, schema: str) -> None:
        self._hub = hub
        self._schema = schema

    def insert(self, payloads: Sequence[Payload]) -> list[Result]:
        inserted = self._hub.ingest.insert_entries(payloads)
        if any(one.schema != self._schema for one in inserted):
            raise Conflict(
                f"the hub's test mode was changed meanwhile: the last {len(inserted)} messages did not go to"
                f" {self._schema}. Change it back and run this again"
            )
        return [_result(one) for one in inserted]


def _result(one: EntryInserted) -> Result:
    if one.error is not None:
        return Result("failed", one.error)
    if one.action == "updated" and not one.changed:
        return Result("stale" if one.stale else "unchanged")
    return Result(one.action)
