"""Doubts are delivered to `hub.on_doubt` once, with one id, over a real connection."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.hub.hub_process import running_hub, started_hub
from tests.hub.monitoring.webhook_receiver import Receiver, webhook_receiver
from tests.waiting import until

from onceward.core.claim import Claim
from onceward.errors import InvalidConfig, StoreUnavailable
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings, effective, load
from onceward.hub.db.engine import Database, open_database
from onceward.hub.monitoring import webhook
from onceward.hub.monitoring.doubts import DoubtRecord
from onceward.hub.monitoring.webhook import Delivery, DoubtWebhook, webhook_client
from onceward.ledger import Ledger

SECRET = b"0123456789abcdef01234567"
SECRET_TEXT = "whsec_" + base64.b64encode(SECRET).decode()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with webhook_receiver() as receiver:
        yield receiver


@pytest.fixture
def config(tmp_path: Path, receiver: Receiver) -> Config:
    return Config(HubSettings(data_dir=str(tmp_path / "data"), on_doubt=receiver.url, on_doubt_secret=SECRET))


@pytest.fixture
def database(config: Config) -> Iterator[Database]:
    with data_folder.opened(config) as database:
        yield database


@pytest.fixture
def ledger(config: Config, database: Database) -> Iterator[Ledger]:
    """The hub's ledger, with one claim in doubt, which is recorded."""
    with data_folder.ledger(config) as ledger:
        put_in_doubt(ledger, "charge:1")
        DoubtRecord(database, "short").scan(ledger)
        yield ledger


def put_in_doubt(ledger: Ledger, key: str) -> int:
    claim = ledger.blocking.begin("charges", key, repeatable=False)
    assert isinstance(claim, Claim)
    assert ledger.blocking.doubt(claim, "the response was lost")
    return claim.version


def rounds(count: int, *workers: DoubtWebhook) -> None:
    """Let these workers deliver at the same time, this often."""

    async def all_rounds() -> None:
        async with webhook_client() as client:
            for _ in range(count):
                await asyncio.gather(*(worker.deliver_due(client) for worker in workers))

    asyncio.run(all_rounds())


def rows(database: Database) -> list[tuple[int, bool]]:
    with database.read() as tx:
        return [(row[0], row[1] is not None) for row in tx.execute(text("SELECT attempts, delivered_at FROM doubts"))]


def test_one_doubt_is_delivered_once_by_several_workers(
    config: Config, database: Database, ledger: Ledger, receiver: Receiver
) -> None:
    with closing(open_database(config.database_url)) as other, data_folder.ledger(config) as other_ledger:
        workers = [
            DoubtWebhook(receiver.url, SECRET, database, ledger),
            DoubtWebhook(receiver.url, SECRET, other, other_ledger),
        ]
        rounds(3, *workers)

    (got,) = receiver.received
    assert rows(database) == [(1, True)]
    body = json.loads(got.body)
    assert (got.path, body["type"], body["data"]["doubt_id"]) == ("/hooks/doubts", "claim.in_doubt", got.webhook_id)
    assert (body["data"]["scope"], body["data"]["key"]) == ("charges", "charge:1")
    assert body["data"]["if_it_happened"].startswith("onceward claims resolve charges charge:1 --version")
    signed = f"{got.webhook_id}.{got.headers['webhook-timestamp']}.".encode() + got.body
    signature = base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    assert got.headers["webhook-signature"] == f"v1,{signature}"


def test_a_worker_that_reads_the_recorded_delivery_of_another_counts_no_attempt(
    database: Database, ledger: Ledger, receiver: Receiver
) -> None:
    late = DoubtWebhook(receiver.url, b"", database, ledger)
    with database.read() as tx:
        due = Delivery(*tx.execute(text("SELECT doubt_id, body, attempts FROM doubts")).one())

    async def deliver_late() -> None:
        async with webhook_client() as client:
            await DoubtWebhook(receiver.url, b"", database, ledger).deliver_due(client)
            await late._deliver(client, due)

    asyncio.run(deliver_late())

    assert len(receiver.received) == 1
    assert rows(database) == [(1, True)]


def test_a_refused_delivery_is_repeated_with_the_same_id_and_body(
    database: Database,
    ledger: Ledger,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(webhook, "RETRY_SECONDS", 0.0)
    receiver.statuses = [500, 500]
    with caplog.at_level(logging.INFO, "onceward.hub"):
        rounds(4, DoubtWebhook(receiver.url, b"", database, ledger))

    assert len(receiver.received) == 3
    assert len({(one.webhook_id, one.body) for one in receiver.received}) == 1
    assert rows(database) == [(3, True)]
    logged = [(record.msg, record.__dict__["attempt"]) for record in caplog.records if "on_doubt" in record.msg]
    assert logged == [("on_doubt_delivery_failed", 1), ("on_doubt_delivery_failed", 2), ("on_doubt_delivered", 3)]
    assert not any(receiver.url in record.getMessage() for record in caplog.records if record.name != "httpx")


def test_the_next_attempt_waits_for_its_turn(database: Database, ledger: Ledger, receiver: Receiver) -> None:
    receiver.statuses = [500]
    rounds(3, DoubtWebhook(receiver.url, b"", database, ledger))

    assert len(receiver.received) == 1
    assert rows(database) == [(1, False)]


def test_a_redirect_is_not_followed(database: Database, ledger: Ledger, receiver: Receiver) -> None:
    receiver.statuses = [307]
    rounds(2, DoubtWebhook(receiver.url, b"", database, ledger))

    assert [one.path for one in receiver.received] == ["/hooks/doubts"]
    assert rows(database) == [(1, False)]


def test_a_doubt_that_is_resolved_before_its_delivery_is_not_sent(
    database: Database, ledger: Ledger, receiver: Receiver
) -> None:
    version = put_in_doubt(ledger, "charge:2")
    record = DoubtRecord(database, "short")
    record.scan(ledger)
    asyncio.run(record.record_resolution("idempotency:charges", "charge:2", version, "committed"))
    rounds(2, DoubtWebhook(receiver.url, b"", database, ledger))

    assert [json.loads(one.body)["data"]["key"] for one in receiver.received] == ["charge:1"]


def test_a_delivery_that_the_ledger_knows_is_not_repeated(
    database: Database, ledger: Ledger, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case of a process that is killed before it marks the row."""

    async def fail(*_given: object, **_values: object) -> None:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(DoubtWebhook, "_write", fail)
        with pytest.raises(StoreUnavailable):
            rounds(1, DoubtWebhook(receiver.url, b"", database, ledger))
    rounds(2, DoubtWebhook(receiver.url, b"", database, ledger))

    assert len(receiver.received) == 1
    assert rows(database) == [(1, True)]


def test_a_hub_that_is_killed_while_it_delivers_delivers_again_with_the_same_id(
    config: Config, tmp_path: Path, receiver: Receiver
) -> None:
    data_dir = tmp_path / "data"
    with data_folder.opened(config):
        pass
    with data_folder.ledger(config) as ledger:
        put_in_doubt(ledger, "charge:1")
    env = {"ONCEWARD_HUB__ON_DOUBT": receiver.url, "ONCEWARD_HUB__ON_DOUBT_SECRET": SECRET_TEXT}
    receiver.unblocked.clear()
    with started_hub(data_dir=data_dir, env=env):
        until(lambda: receiver.received, "the first hub sent nothing")
    receiver.unblocked.set()
    with running_hub(data_dir=data_dir, env=env) as hub:
        until(lambda: len(receiver.received) > 1, "the second hub sent nothing")
        hub.wait_for_line("on_doubt_delivered")

    assert len(receiver.ids) == 2
    assert len(set(receiver.ids)) == 1


def test_the_secret_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "onceward.toml"
    file.write_text(f'[hub]\non_doubt = "https://example.com/x"\non_doubt_secret = "{SECRET_TEXT}"\n')
    config = load(file, {}, {})

    assert config.hub.on_doubt_secret == SECRET
    assert SECRET_TEXT[6:] not in effective(config) + repr(config)
    file.write_text('[hub]\non_doubt_secret = "whsec_MDEyMzQ1"\n')
    with pytest.raises(InvalidConfig, match=r"hub.on_doubt_secret .*: expected") as caught:
        load(file, {}, {})
    assert "MDEyMzQ1" not in str(caught.value)


def test_only_the_server_of_the_url_is_shown(tmp_path: Path) -> None:
    """The URL of a Slack webhook is enough to send messages there."""
    file = tmp_path / "onceward.toml"
    file.write_text('[hub]\non_doubt = "https://hooks.slack.com/services/T0/B0/hush"\n')
    config = load(file, {}, {})

    assert "hush" not in effective(config) + repr(config)
    assert 'on_doubt = "https://hooks.slack.com/***"' in effective(config)
    file.write_text('[hub]\non_doubt = "hooks.slack.com/services/T0/B0/hush"\n')
    with pytest.raises(InvalidConfig, match=r"hub.on_doubt .*: expected an http") as caught:
        load(file, {}, {})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://example.com/x", "https://", "example.com", "http://h:port/", "http://h/#a"])
def test_a_url_that_cannot_be_a_webhook_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match=r"hub.on_doubt .*: expected an http"):
        load(None, {"ONCEWARD_HUB__ON_DOUBT": url}, {})
