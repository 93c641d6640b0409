"""Inserts under faults: a worker killed after the commit, and mode switches under load."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from tests.faults.hub.conftest import Killable, Site
from tests.faults.hub_database import written
from tests.hub.ingest_hub import PLAIN, SCHEMAS, rows, thought
from tests.hub.raw_client import Caller, connections_by_worker
from tests.waiting import SECONDS_MAX

INSERT = "/db/insert"
EACH = 60


def test_an_insert_whose_worker_was_killed_after_the_commit_is_reported_as_inserted(killable: Killable) -> None:
    ask = Caller(killable.hub.port)
    requests: list[tuple[str, object, str]] = [
        (INSERT, thought(1), "one"),
        (INSERT, PLAIN, "plain"),
        (INSERT, {"items": [thought(2), thought(3), "bad", PLAIN]}, "batch"),
    ]

    killable.kill_at("committed", requests)
    stranded = written(killable.database)
    one, plain, batch = (ask.request_until_final("POST", path, sent, key=key) for path, sent, key in requests)
    replayed = ask.post(INSERT, PLAIN, key="plain")

    assert (one.json["action"], plain.json["action"]) == ("inserted", "inserted")
    assert [result["action"] for result in batch.json["results"]] == ["inserted", "inserted", "failed", "inserted"]
    assert not any(answer.replayed for answer in (one, plain, batch))
    assert (replayed.body, replayed.replayed) == (plain.body, True)
    found = rows(killable.database, "pkm")
    assert {str(row["id"]) for row in found} == {
        shown["id"] for shown in (one.json, plain.json, *batch.json["results"]) if shown["action"] == "inserted"
    }
    assert len(found) == 5
    assert written(killable.database) == stranded, "the retries wrote nothing"


def test_during_mode_switches_every_entry_is_where_its_response_says(site: Site) -> None:
    boss, over = site.caller("boss", "admin"), threading.Event()
    before = {schema: {str(row["id"]) for row in rows(site.database, schema)} for schema in SCHEMAS}

    def switch() -> int:
        number = 0
        while not over.is_set():
            number += 1
            assert boss("PUT", "/test-mode", {"enabled": number % 2 == 1}).status == 200
        return number

    def load(caller: Caller, name: str) -> list[Any]:
        answers = []
        for number in range(EACH):
            payload = thought(number, name, idempotency_key_primary=f"{name}:{number}")
            sent: Any = payload if number % 3 else {"items": [payload, PLAIN]}
            answer = caller.post(INSERT, sent, key=f"{name}-{number}" if number % 2 else None)
            assert answer.status == 200, answer
            answers.append(answer.json)
        return answers

    by_worker = connections_by_worker(site.hub, 2)
    connections = [connection for some in by_worker.values() for connection in some]
    with ThreadPoolExecutor(len(connections) + 1) as threads:
        switching = threads.submit(switch)
        loads = [
            threads.submit(load, Caller(site.port, site.token, connection), f"load-{number}")
            for number, connection in enumerate(connections)
        ]
        answers = [answer for one in loads for answer in one.result(SECONDS_MAX)]
        over.set()
        switches = switching.result(SECONDS_MAX)
    for connection in connections:
        with closing(connection):
            pass
    assert boss("PUT", "/test-mode", {"enabled": False}).json == {"enabled": False}

    answered: dict[str, set[str]] = {schema: set() for schema in SCHEMAS}
    for answer in answers:
        answered[answer["schema"]] |= {one["id"] for one in answer.get("results", [answer])}
    assert switches > 10
    assert all(answered.values()), "both were used"
    for schema in SCHEMAS:
        assert {str(row["id"]) for row in rows(site.database, schema)} - before[schema] == answered[schema]
