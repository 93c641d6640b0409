"""What a hub does by itself, when it stops in the middle of it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.hub.inside import hub_inside

from onceward.db.engine import Database
from onceward.hub import jobs
from onceward.hub.config import Config, EventsSettings, HubSettings


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_hears_that_the_hub_stops_and_is_waited_for(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread uses the database, which is closed after it."""
    began, ended = threading.Event(), threading.Event()

    def without_end(_tx: object, _before: str) -> int:
        began.set()
        return 1

    def close() -> None:
        assert ended.is_set(), "the database was closed while a job used it"

    deleting = jobs.delete_old_events

    def watched(*given: object) -> int:
        try:
            return deleting(*given)  # type: ignore[arg-type]
        finally:
            ended.set()

    assert database is not None
    monkeypatch.setattr("onceward.events.log.retain", without_end)
    monkeypatch.setattr(jobs, "delete_old_events", watched)
    config = Config(HubSettings(data_dir=str(tmp_path), database=database_url), events=EventsSettings(keep_days=1.0))
    monkeypatch.setattr(Database, "close", lambda _: close())
    with hub_inside(config) as client:
        # Its loop runs while it is asked something.
        while not began.is_set():
            client.get("/healthz")

    assert ended.is_set()
    monkeypatch.undo()
