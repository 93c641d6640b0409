"""The record of doubts: one row and one event for each doubt, and one event for its end."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.backends import BACKENDS, Servers
from tests.hub.in_process_hub import in_process_hub
from tests.waiting import until

from onceward import Ledger
from onceward.core.claim import Claim, Entry
from onceward.core.outcome import Outcome
from onceward.core.verdict import Committed
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.db.timestamps import time_text
from onceward.hub.events import log
from onceward.hub.monitoring.doubts import KEEP_DAYS, DoubtRecord, purge_doubts
from onceward.ledger.open import open_ledger
from onceward.store.memory import MemoryStore
from onceward.testing import PinnedClock

HTTP_KEY = "a-key-that-a-client-chose-and-that-nobody-else-may-see"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with closing(Ledger(MemoryStore())) as ledger:
        yield ledger


def in_doubt(ledger: Ledger, key: str = "k", scope: str = "call") -> Claim:
    claim = ledger.blocking.begin(scope, key, repeatable=False)
    assert isinstance(claim, Claim)
    assert ledger.blocking.doubt(claim, "the response was lost")
    return claim


def entry_of(ledger: Ledger, claim: Claim) -> Entry:
    entry = ledger.blocking.read(claim.entry.scope.partition(":")[2], claim.entry.key)
    assert entry is not None
    return entry


def events(database: Database) -> list[tuple[str, object]]:
    with database.read() as tx:
        return [(one.name, json.loads(one.data)) for one in log.page(tx, 0, 10_000, 500)]


def names(database: Database) -> list[str]:
    return [name for name, _ in events(database)]


def test_a_doubt_that_is_reported_and_found_by_two_scans_has_one_event(database: Database, ledger: Ledger) -> None:
    record = DoubtRecord(database, "short")
    claim = in_doubt(ledger)
    for _ in range(2):
        record.record_doubt(entry_of(ledger, claim))
    changes = [DoubtRecord(database, "short").scan(ledger), record.scan(ledger)]

    data = {"namespace": "onceward", "scope": "call", "key": "k", "version": claim.version}
    assert events(database) == [("claim.in_doubt", data)]
    assert changes == [0, 0]


def test_a_scan_finds_what_was_not_reported_and_how_it_ended(database: Database, ledger: Ledger) -> None:
    """The process was killed after its write, or a command used the ledger directly."""
    record = DoubtRecord(database, "short")
    claims = [in_doubt(ledger, key) for key in ("late", "overturned", "still")]
    found = record.scan(ledger)
    assert ledger.blocking.settle(claims[0], Outcome(body=b"late"))
    assert ledger.blocking.resolve("call", "overturned", claims[1].version, Committed(1), note="checked")
    ended = [record.scan(ledger), record.scan(ledger)]

    assert (found, ended) == (3, [2, 0])
    resolved = [(data["key"], data["outcome"]) for name, data in events(database) if name == "claim.resolved"]  # type: ignore[index]
    assert sorted(resolved) == [("late", "committed"), ("overturned", "committed")]


def test_a_doubt_that_is_resolved_before_it_was_recorded_has_both_events(database: Database, ledger: Ledger) -> None:
    claim = in_doubt(ledger)
    record = DoubtRecord(database, "short")
    for _ in range(2):
        asyncio.run(record.record_resolution(claim.entry.scope, "k", claim.version, "committed"))
    assert ledger.blocking.resolve("call", "k", claim.version, Committed(1), note="checked")
    record.scan(ledger)

    assert names(database) == ["claim.in_doubt", "claim.resolved"]


def test_the_key_of_a_client_is_cut_in_events_even_if_the_log_shows_it(database: Database, ledger: Ledger) -> None:
    claim = in_doubt(ledger, HTTP_KEY, "http:user:ada")
    DoubtRecord(database, "whole").record_doubt(entry_of(ledger, claim))
    with database.read() as tx:
        body = json.loads(tx.execute(text("SELECT body FROM doubts")).scalar_one())

    assert [data["key"] for _, data in events(database)] == [HTTP_KEY[:20] + "..."]  # type: ignore[index]
    assert body["data"]["key"] == HTTP_KEY
    assert HTTP_KEY in body["data"]["if_it_happened"]


def test_a_doubt_of_another_namespace_that_this_hub_found_is_recorded_until_it_ends(database: Database) -> None:
    clock = PinnedClock()
    store = MemoryStore(clock)
    with closing(Ledger(store, namespace="shop", lease_seconds=10)) as shop:
        record = DoubtRecord(database, "short")
        with closing(Ledger(store, namespace="hub", on_doubt=record.record_doubt)) as hub:
            claim = shop.blocking.begin("call", "k", repeatable=False)
            assert isinstance(claim, Claim)
            clock.advance(10)
            assert hub.blocking.doubt_lapsed() == 1
            until(lambda: names(database))
            still = record.scan(hub)
            assert shop.blocking.settle(claim, Outcome(body=b"late"))
            record.scan(hub)

    assert still == 0
    assert names(database) == ["claim.in_doubt", "claim.resolved"]


def scan_often(database_url: str, ledger_url: str) -> None:
    with closing(open_database(database_url)) as database, open_ledger(ledger_url) as ledger:
        for _ in range(3):
            DoubtRecord(database, "short").scan(ledger)


def test_processes_that_scan_at_the_same_time_append_each_event_once(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    ledger_url = f"sqlite:///{tmp_path}/ledger.db"
    with open_ledger(ledger_url) as ledger:
        for number in range(150):
            in_doubt(ledger, f"k{number}")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=scan_often, args=(database_url, ledger_url)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0, 0]
    assert names(database) == ["claim.in_doubt"] * 150


def test_old_rows_of_resolved_doubts_are_deleted(database: Database, ledger: Ledger) -> None:
    record = DoubtRecord(database, "short")
    claims = {key: in_doubt(ledger, key) for key in ("open", "new", "old")}
    record.scan(ledger)
    for key in ("new", "old"):
        asyncio.run(record.record_resolution("onceward:call", key, claims[key].version, "committed"))
    long_ago = time_text(datetime.now(UTC) - timedelta(days=KEEP_DAYS + 1))
    with database.write() as tx:
        tx.execute(text("UPDATE doubts SET resolved_at = :at WHERE key = 'old'"), {"at": long_ago})
    deleted = purge_doubts(database)

    with database.read() as tx:
        assert set(tx.execute(text("SELECT key FROM doubts")).scalars()) == {"open", "new"}
    assert deleted == 1


def test_a_hub_appends_the_events_of_a_doubt_and_of_its_verdict(servers: Servers, tmp_path: Path) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path), ledger=BACKENDS["redis"].url(servers, tmp_path)))
    with closing(open_database(config.database_url)) as database:
        migrate(database)
        with open_ledger(config.ledger_url, namespace=config.idempotency.key_prefix, lease_seconds=300) as other:
            claim = other.blocking.begin("charges", "charge:1", repeatable=False)
            assert isinstance(claim, Claim)
        with in_process_hub(config) as hub:
            sent = {"scope": "charges", "key": "charge:1", "version": claim.version, "reason": "asked the provider"}
            abandoned = hub.post("/api/v1/claims/abandon", json={**sent, "force": True})
            assert abandoned.status_code == 200, abandoned.text
            until(lambda: hub.get("/healthz") and names(database), "the doubt has no event")
            resolved = hub.post("/api/v1/claims/resolve", json={**sent, "verdict": "committed"})
            assert resolved.status_code == 200, resolved.text
            shown = hub.get("/api/v1/events").json()["events"]

    assert [one["name"] for one in shown] == ["claim.in_doubt", "claim.resolved"]
    assert {(one["entity_type"], one["entity_id"][:4]) for one in shown} == {("claim", "dbt_")}
    assert shown[1]["data"]["outcome"] == "committed"
