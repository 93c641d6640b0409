"""Backfills as processes: two at once, again, and killed in the middle. In the end there is what one run makes.

`ONCEWARD_BACKFILL=20000` runs them at the size of a real archive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.faults.ingest.corpus import messages, write
from tests.hub.hub_process import environment
from tests.waiting import until

from onceward.hub.db.engine import Database, open_database
from onceward.hub.ingest.entries.columns import COLUMNS
from onceward.hub.ingest.entries.schema import PKM

COUNT = int(os.environ.get("ONCEWARD_BACKFILL", "1000"))
SECONDS_MAX = 60 + COUNT / 50
# Assigned by the database, or by the clock.
_ASSIGNED = frozenset({"entry_id", "id", "created_at", "updated_at"})


class BackfillDatabase:
    """A database, and backfills that run on it."""

    def __init__(self, url: str, database: Database, folder: Path) -> None:
        self.database = database
        self._url = url
        self._folder = folder

    def command(self, archive: Path, *options: str) -> list[str]:
        where = ["--data-dir", str(self._folder), "--database", self._url]
        return [sys.executable, "-m", "onceward", "ingest", "backfill", str(archive), "--json", *where, *options]

    @contextmanager
    def started(self, archive: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        with subprocess.Popen(
            self.command(archive, *options), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, archive: Path, *options: str) -> dict[str, Any]:
        with self.started(archive, *options) as process:
            return finished(process)

    @property
    def _table(self) -> str:
        return PKM.table("entries", is_sqlite=self.database.is_sqlite)

    def count(self) -> int:
        with self.database.read() as tx:
            return int(tx.execute(text(f"SELECT count(*) FROM {self._table}")).scalar_one())  # noqa: S608  # ours

    def events(self) -> int:
        with self.database.read() as tx:
            return int(tx.execute(text("SELECT count(*) FROM events")).scalar_one())

    def state(self) -> dict[tuple[object, ...], Any]:
        """Return the part of the table that does not depend on the order of arrival.

        Of skipped duplicates, the first to arrive is stored; of entries with the same text, only one has it as a hint.
        """
        with self.database.read() as tx:
            everything = text(f"SELECT {', '.join(COLUMNS)} FROM {self._table}")  # noqa: S608  # ours
            rows = tx.execute(everything).mappings().all()
        entries: dict[tuple[object, ...], Any] = {}
        for row in rows:
            columns = {name: value for name, value in row.items() if name not in _ASSIGNED}
            columns["metadata"] = json.loads(columns["metadata"])
            key = (columns.pop("idempotency_policy_id"), columns.pop("idempotency_key_primary"))
            secondary = columns.pop("idempotency_key_secondary")
            assert key not in entries
            entries[key] = secondary if columns["content_type"] == "link" else columns
        return entries


def finished(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, err.decode()
    summary: dict[str, Any] = json.loads(out)
    assert summary["failed"] == 0, summary
    return summary


@pytest.fixture
def target(database_url: str, tmp_path: Path) -> Iterator[BackfillDatabase]:
    with closing(open_database(database_url)) as database:
        yield BackfillDatabase(database_url, database, tmp_path / "data")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[object, ...], Any]:
    """The state after a single run over the archive."""
    folder = tmp_path_factory.mktemp("once")
    url = f"sqlite:///{folder}/hub.db"
    with closing(open_database(url)) as database:
        target = BackfillDatabase(url, database, folder / "data")
        summary = target.run(write(folder / "a.jsonl", messages(COUNT), 0))
        assert summary["inserted"] == target.count() > COUNT / 3
        return target.state()


def test_two_concurrent_backfills_in_other_orders_give_the_same_result_as_one(
    target: BackfillDatabase, once: dict[tuple[object, ...], Any], tmp_path: Path
) -> None:
    sent = messages(COUNT)
    first, second = (write(tmp_path / f"{seed}.jsonl", sent, seed) for seed in (1, 2))
    with target.started(first, "--chunk", "100") as one, target.started(second, "--chunk", "70") as other:
        summaries = [finished(process) for process in (one, other)]

    assert sum(one["inserted"] for one in summaries) == target.count() == len(once)
    assert target.state() == once

    events = target.events()
    again = target.run(write(tmp_path / "3.jsonl", sent, 3))

    assert (again["inserted"], again["updated"]) == (0, 0)
    assert target.events() == events
    assert target.state() == once


def test_a_killed_backfill_continues_and_gives_the_same_result_as_one(
    target: BackfillDatabase, once: dict[tuple[object, ...], Any], tmp_path: Path
) -> None:
    archive = write(tmp_path / "a.jsonl", messages(COUNT), 4)
    with target.started(archive, "--chunk", "20") as process:
        until(lambda: target.events() > COUNT / 5, "nothing is inserted", seconds=SECONDS_MAX)
        process.kill()
    assert process.returncode == -9
    before = target.count()
    assert 0 < before < len(once)

    summary = target.run(archive)

    # A chunk may have been committed whose checkpoint was not written.
    seen = sum(summary[action] for action in ("inserted", "updated", "unchanged", "stale", "skipped"))
    assert seen < COUNT
    assert summary["inserted"] == len(once) - before
    assert target.state() == once
