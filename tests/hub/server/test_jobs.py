"""Background jobs of a hub, also during its stop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import insert
from tests.hub.in_process_hub import in_process_hub
from tests.hub.tasks_hub import attach, tasks_hub
from tests.waiting import until

from onceward.hub.audit.log import audit_page
from onceward.hub.config import data_folder
from onceward.hub.config.config import AttachmentsSettings, Config, EventsSettings, HubSettings
from onceward.hub.db.engine import Database
from onceward.hub.db.tables import audit_log
from onceward.hub.db.timestamps import now_text
from onceward.hub.server import jobs
from onceward.ledger.open import open_ledger


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_is_told_that_the_hub_stops_and_is_waited_for(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread uses the database, which is closed after it."""
    began, ended = threading.Event(), threading.Event()

    def without_end(_tx: object, _before: str) -> int:
        began.set()
        return 1

    deleting, closing = jobs.delete_old_events, Database.close

    def close(database: Database) -> None:
        assert ended.is_set(), "the database was closed while a job used it"
        closing(database)

    def watched(*given: object) -> int:
        try:
            return deleting(*given)  # type: ignore[arg-type]
        finally:
            ended.set()

    assert database is not None
    monkeypatch.setattr("onceward.hub.events.log.delete_old_events", without_end)
    monkeypatch.setattr(jobs, "delete_old_events", watched)
    config = Config(HubSettings(data_dir=str(tmp_path), database=database_url), events=EventsSettings(keep_days=1.0))
    monkeypatch.setattr(Database, "close", close)
    with in_process_hub(config) as client:
        # Its loop runs while it is asked something; in between its other threads have room.
        until(lambda: client.get("/healthz") and began.is_set(), "the job never began")

    assert ended.is_set()
    monkeypatch.undo()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_hub_deletes_old_lines_of_its_audit_log(database: Database, database_url: str, tmp_path: Path) -> None:
    row = {"principal": "ada", "source": "api", "action": "policy.put", "details": "{}", "result": "done"}
    with database.write() as tx:
        for created_at in ("2020-01-01T00:00:00.000000Z", now_text()):
            tx.execute(insert(audit_log).values(created_at=created_at, **row))

    def entries() -> list[tuple[str, str, str]]:
        with database.read() as tx:
            return [(one.principal, one.source, one.action) for one in audit_page(tx, 10).items]

    with in_process_hub(Config(HubSettings(data_dir=str(tmp_path), database=database_url))) as client:
        kept, deletion = ("ada", "api", "policy.put"), ("hub", "job", "audit.retain")
        until(lambda: client.get("/healthz") and entries() == [deletion, kept], "the old line was not deleted")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_hub_warns_that_it_does_not_see_the_entries_of_an_earlier_version(
    database: Database, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert database is not None
    config = Config(HubSettings(data_dir=str(tmp_path), database=database_url))
    with open_ledger(config.ledger_url, namespace="onceward") as before:
        before.blocking.run("job:artifacts-purge", lambda: 1, effect="idempotent")
    with in_process_hub(config) as client:
        until(lambda: client.get("/healthz") and "key_prefix" in caplog.text, "nobody is warned")

    assert 'idempotency.key_prefix = "onceward"' in caplog.text


@pytest.mark.parametrize(
    ("there", "sources"),
    [("idempotency", {}), ("onceward", {("idempotency", "key_prefix"): "file onceward.toml"})],
    ids=["nothing", "set"],
)
def test_entries_that_are_seen_or_not_wanted_cause_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, there: str, sources: dict[tuple[str, str], str]
) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path)), sources=sources)
    with open_ledger(config.ledger_url, namespace=there) as before:
        before.blocking.run("job:artifacts-purge", lambda: 1, effect="idempotent")
    with data_folder.ledger(config) as ledger:
        asyncio.run(jobs.warn_of_former_entries(config, ledger))

        assert (ledger.namespace, caplog.text) == ("idempotency", "")


def test_a_hub_runs_gc_by_itself_and_repeatedly(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    def kept() -> set[str]:
        return {file.name for file in (tmp_path / "blobs" / "sha256").rglob("*") if file.is_file()}

    no_grace = AttachmentsSettings(gc_grace=0.0)
    with tasks_hub("sqlite-folder", request, tmp_path, no_grace, gc_interval=0.05) as client:
        needed = attach(client, b"needed")
        # The first run may have been over before there was anything; the others come after it.
        for number in range(3):
            unneeded = attach(client, b"unneeded %d" % number)
            assert unneeded["sha256"] in kept()
            assert client.request("DELETE", f"/v1/attachments/{unneeded['id']}").status_code == 200

            # Its loop runs while it is asked something.
            until(lambda: client.get("/healthz") and kept() == {needed["sha256"]}, "it was never collected")

        assert client.get(f"/v1/attachments/{needed['id']}/content").content == b"needed"
        assert client.post("/v1/admin/gc-blobs", json={}).json()["candidate_count"] == 0
        audit = {"principal": "hub", "action": "blobs.gc"}
        # One for each run that deleted something, and none for those that did not.
        deletions = until(
            lambda: len(found := client.get("/api/v1/audit", params=audit).json()["entries"]) >= 3 and found
        )
        assert [(one["source"], one["result"], one["details"]["deleted_count"]) for one in deletions] == [
            ("job", "done", 1)
        ] * 3


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_frequent_job_is_logged_only_if_it_changed_something(
    database: Database, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert database is not None
    config = Config(HubSettings(data_dir=str(tmp_path), database=database_url))
    done = "/api/v1/claims?scope=call&status=completed"

    with caplog.at_level("INFO", "onceward.hub"), in_process_hub(config) as client:
        for job in ("doubts-purge", "doubts-scan"):
            until(lambda job=job: f"job:{job}" in client.get(done).text, f"{job} never ran")  # type: ignore[misc]

    logged = [record.__dict__["job"] for record in caplog.records if record.msg == "job_done"]
    assert "doubts-purge" in logged
    assert "doubts-scan" not in logged
