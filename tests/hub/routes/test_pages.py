"""Pages about the hub itself."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.hub.in_process_hub import Client, in_process_hub
from tests.servers.postgres import PostgresServer
from tests.waiting import SECONDS_MAX, until

from onceward.hub.blobs.folder import FolderBlobs
from onceward.hub.config.config import Config, EventsSettings, HubSettings, IdempotencySettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.routes import pages


def migrated(config: Config) -> Config:
    with closing(open_database(config.database_url)) as database:
        migrate(database)
    return config


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with in_process_hub(migrated(Config(HubSettings(data_dir=str(tmp_path))))) as client:
        yield client


def test_a_hub_says_that_it_is_alive_and_that_its_stores_are_ready(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok", "checks": {"database": "ok", "ledger": "ok", "blobs": "ok"}}


def test_a_hub_whose_stores_are_gone_is_alive_and_not_ready(tmp_path: Path) -> None:
    with PostgresServer() as server:
        config = migrated(Config(HubSettings(data_dir=str(tmp_path), database=server.create_database())))
        with in_process_hub(config) as client:
            assert client.get("/readyz").status_code == 200
            server.stop()

            answer = client.get("/readyz")

            assert answer.status_code == 503
            assert answer.json()["status"] == "unavailable"
            checks = answer.json()["checks"]
            assert set(checks) == {"database", "ledger", "blobs"}
            assert [name for name, result in checks.items() if result == "ok"] == ["blobs"]
            assert client.get("/healthz").status_code == 200


def test_a_hub_whose_blob_folder_is_gone_is_not_ready_until_it_is_back(client: Client, tmp_path: Path) -> None:
    blobs, away = tmp_path / "blobs", tmp_path / "away"
    blobs.rename(away)
    gone = client.get("/readyz")
    away.rename(blobs)
    back = client.get("/readyz")

    assert (gone.status_code, back.status_code) == (503, 200)
    assert gone.json()["checks"] == {"database": "ok", "ledger": "ok", "blobs": "store-unavailable"}


def test_a_hanging_check_of_the_blobs_blocks_neither_responses_nor_threads(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pings: list[int] = []
    let_go = threading.Event()

    def never_answers(_: object) -> None:
        pings.append(1)
        let_go.wait(SECONDS_MAX)

    monkeypatch.setattr(FolderBlobs, "ping", never_answers)
    monkeypatch.setattr(pages, "READY_SECONDS", 0.05)
    answers = [client.get("/readyz") for _ in range(3)]
    let_go.set()

    assert [answer.status_code for answer in answers] == [503] * 3
    assert len(pings) == 1


def test_the_skill_file_and_the_pages_are_served(client: Client) -> None:
    skill = client.get("/skill.md")

    assert skill.headers["content-type"].startswith("text/markdown")
    assert "## Retry Safety" in skill.text
    assert client.get("/").headers["location"] == "/console/"
    assert "API reference" in client.get("/docs").text


def test_no_page_loads_anything_from_elsewhere(client: Client) -> None:
    for path in ("/console/", "/docs"):
        assert not re.search(r"""(?:src|href|action)=["']?(?:[a-z]+:)?//""", client.get(path).text)


def test_the_document_shows_every_route_and_only_responses_that_are_sent(client: Client) -> None:
    document = client.get("/openapi.json").json()

    assert {
        "/api/v1/topics",
        "/api/v1/topics/{topic_id}",
        "/api/v1/topics/{topic_id}/messages",
        "/api/v1/topics/{topic_id}/attachments",
        "/api/v1/events",
        "/api/v1/events/stream",
        "/healthz",
        "/readyz",
        "/metrics",
        "/skill.md",
    } <= set(document["paths"])
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    needed = {
        (method, path): operation["security"]
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    assert needed["get", "/healthz"] == []
    assert needed["get", "/api/v1/topics"] == [{"token": ["read"]}, {}]
    assert needed["post", "/api/v1/topics"] == [{"token": ["write"]}, {}]
    assert needed["post", "/v1/admin/gc-blobs"] == [{"token": ["admin"]}, {}]
    post = document["paths"]["/api/v1/topics/{topic_id}/attachments"]["post"]
    assert {"200", "201", "400", "409", "422"} <= set(post["responses"])
    assert "Idempotency-Key" in {parameter["name"] for parameter in post["parameters"]}


def test_the_reference_has_exactly_these_endpoints_with_their_scopes(client: Client) -> None:
    document = client.get("/openapi.json").json()
    scopes = {
        f"{method.upper()} {path}": [*{scope: 1 for one in operation["security"] for scope in one.get("token", ())}]
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    reference = (Path(__file__).parents[3] / "docs" / "reference.md").read_text("utf-8")
    rows = re.findall(r"^\| `((?:GET|POST|PUT|DELETE|PATCH) /[^`]*)` \| ([^|]*) \|", reference, re.MULTILINE)

    assert {row: re.findall(r"`(\w+)`", scope) for row, scope in rows} == scopes


def test_without_the_middleware_the_key_is_ignored(tmp_path: Path) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path)), IdempotencySettings(enabled=False))
    with in_process_hub(migrated(config)) as client:
        made = [client.post("/api/v1/topics", json={"title": "T"}, headers={"Idempotency-Key": "k"}) for _ in "ab"]

    assert made[0].json()["topic"] != made[1].json()["topic"]


def test_a_path_with_an_extra_slash_is_not_found_and_not_redirected(client: Client) -> None:
    # A client that followed would send the same key with another address, and be refused for that.
    answer = client.post("/api/v1/topics/", json={"title": "T"}, headers={"Idempotency-Key": "k"})

    assert (answer.status_code, answer.json()["code"]) == (404, "notFound")


def test_a_job_that_the_database_refuses_runs_again_and_does_not_break_the_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path)), events=EventsSettings(keep_days=1e-9, retention_interval=0.1))
    refusing = "CREATE TRIGGER refuse BEFORE UPDATE ON event_log BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with closing(open_database(migrated(config).database_url)) as database:
        with database.write() as tx:
            tx.execute(text(refusing))
        with caplog.at_level("INFO", "onceward.hub"), in_process_hub(config) as client:
            client.post("/api/v1/topics", json={"title": "T"})

            def was_logged(name: str) -> bool:
                # The jobs run while the hub is asked something, for their loop is the client's, too.
                client.get("/api/v1/events")
                return name in [record.msg for record in caplog.records]

            until(lambda: was_logged("job_failed"), "the job does not meet the refusal")
            with database.write() as tx:
                tx.execute(text("DROP TRIGGER refuse"))
            until(lambda: was_logged("job_recovered"), "the job is not run again")

    (failed,) = [record for record in caplog.records if record.msg == "job_failed"]
    (recovered,) = [record for record in caplog.records if record.msg == "job_recovered"]
    assert (failed.job, recovered.job) == ("events-retention", "events-retention")  # type: ignore[attr-defined]


def test_old_events_are_deleted_automatically(tmp_path: Path) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path)), events=EventsSettings(keep_days=1e-9, retention_interval=1.0))
    with in_process_hub(migrated(config)) as client:
        client.post("/api/v1/topics", json={"title": "T"})

        def emptied() -> dict[str, Any] | None:
            page: dict[str, Any] = client.get("/api/v1/events").json()
            return None if page["events"] else page

        page = until(emptied, "old events are still there")

    assert page["gap"] == {"after_event_id": 0, "oldest_event_id": 2}
    assert page["next_after"] == 1


def test_head_works_wherever_get_does_without_a_body(client: Client) -> None:
    for path in ("/healthz", "/readyz", "/console/", "/api/v1/topics", "/api/v1/events"):
        answer = client.request("HEAD", path)

        assert (answer.status_code, answer.content) == (200, b""), path
        assert int(answer.headers["content-length"]) > 0
    assert client.request("HEAD", "/nowhere").status_code == 404


def test_a_wrong_method_gets_the_allowed_ones(client: Client) -> None:
    answer = client.request("DELETE", "/api/v1/topics/top_1/attachments")

    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST, PUT"


def test_an_unreadable_request_gets_errors(client: Client) -> None:
    answer = client.post("/api/v1/topics", content=b"{", headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "request"
