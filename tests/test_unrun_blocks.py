"""Each block that its page does not run is executed by a test, with the server or the process that it needs."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import psycopg
import pytest
import tests.http.django_settings  # noqa: F401  # before the model
from asgiref.sync import sync_to_async
from django.core.wsgi import get_wsgi_application
from django.db import connection, connections, models, transaction
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path
from tests.django_databases import default_database
from tests.english import DOCUMENTS
from tests.forked_python import forked_python
from tests.hub.hub_process import running_hub
from tests.integrations.mcp_clients import connected, over_http
from tests.markdown import DO_NOT_RUN, PRINTS, RUN, Block, blocks
from tests.servers.postgres import PostgresServer
from tests.unrun_blocks import ROOT, changed, execute, unrun_block

from onceward import Ledger, current_claim, open_ledger
from onceward.http import WSGIIdempotencyMiddleware, idempotency

SHOP = "postgresql://shop@localhost/shop"


def test_a_test_executes_each_block_that_its_page_does_not_run() -> None:
    calls = {
        call
        for file in ROOT.glob("tests/**/test_*.py")
        for call in re.findall(r'unrun_block\("([^"]+)", "([^"]+)"\)', file.read_text("utf-8"))
    }
    executed = {(page, unrun_block(page, words).line) for page, words in calls}
    there = {
        (page.relative_to(ROOT).as_posix(), block.line)
        for pattern in DOCUMENTS
        for page in ROOT.glob(pattern)
        for block in blocks(page)
        if block.kind == DO_NOT_RUN
    }

    assert len(there) > 10
    assert executed == there


def shown(block: Block) -> list[str]:
    """The lines of output that the document shows."""
    return PRINTS.findall(block.text)


# Clients of a hub.


@pytest.fixture(scope="module")
def hub_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    brain = ("--brain", "onceward.hub.refund_desk:brain")
    with running_hub(data_dir=tmp_path_factory.mktemp("hub") / "data", args=brain) as hub:
        yield hub.url


def test_the_client_in_the_skill(hub_url: str) -> None:
    block = unrun_block("src/onceward/.agents/skills/onceward/SKILL.md", "create_topic")

    assert execute(block, {}, {"http://127.0.0.1:8787": hub_url}) == shown(block) == ["True"]


def test_the_client_of_topics_and_its_events(hub_url: str) -> None:
    client, events = (
        unrun_block("docs/guides/topics.md", "hub.create_topic"),
        unrun_block("docs/guides/topics.md", "hub.follow"),
    )
    names: dict[str, object] = {"url": hub_url}

    assert execute(client, names) == shown(client) == ["True None"]
    assert execute(events, names) == shown(events) == ["topic.created"]


def test_the_client_of_the_ingest(hub_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letter = b"Message-ID: <1@shop>\r\nFrom: ada@shop\r\nSubject: Hello\r\n\r\nHello, Bob.\r\n"
    (tmp_path / "letter.eml").write_bytes(letter)
    monkeypatch.chdir(tmp_path)
    enriched: list[Any] = []
    block = unrun_block("docs/guides/ingest.md", "hub.ingest.insert_entry")

    for _ in range(2):
        execute(block, {"url": hub_url, "Path": Path, "enrich": enriched.append})

    assert [entry.title for entry in enriched] == ["Hello"]


def test_the_client_of_turns(hub_url: str) -> None:
    lines = execute(unrun_block("docs/guides/turns.md", "hub.chat.say"), {"url": hub_url})

    assert lines == [
        "complete Order 12345, a teapot: 49.90 EUR has been refunded.",
        "One moment, please. ",  # the part that this brain streams
    ]


# Transactions.


@pytest.fixture(scope="module")
def database_url(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database()


@pytest.fixture
def shop(database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to a database with two empty tables of payments, and nothing else."""
    with psycopg.connect(database_url, autocommit=True) as shop:
        shop.execute("DROP SCHEMA public CASCADE")
        shop.execute("CREATE SCHEMA public")
        shop.execute("CREATE TABLE payments (order_id TEXT, amount INTEGER)")
        shop.execute(
            "CREATE TABLE shop_payment (id SERIAL PRIMARY KEY, order_id TEXT NOT NULL, amount INTEGER NOT NULL)"
        )
        yield shop


def paid_twice(block: Block, url: str) -> list[list[str]]:
    """Run the block as two programs."""
    output = []
    for _ in range(2):
        names: dict[str, object] = {"open_ledger": open_ledger, "current_claim": current_claim}
        output.append(execute(block, names, {SHOP: url}))
        cast("Ledger", names["ledger"]).close()
    return output


def test_a_payment_with_asyncpg(shop: psycopg.Connection, database_url: str) -> None:
    block = unrun_block("docs/guides/ledger.md", "import asyncpg")

    assert paid_twice(block, database_url) == [shown(block)] * 2 == [["{'paid': '42'}"]] * 2
    assert shop.execute("TABLE payments").fetchall() == [("42", 10)]


def test_a_payment_with_psycopg(shop: psycopg.Connection, database_url: str) -> None:
    block = unrun_block("docs/guides/ledger.md", "import psycopg")

    assert paid_twice(block, database_url) == [shown(block)] * 2 == [["{'paid': '42'}"]] * 2
    assert shop.execute("TABLE payments").fetchall() == [("42", 10)]


class Payment(models.Model):  # type: ignore[misc]  # Django has no types
    """Define the model of the project that the reader has."""

    order_id = models.TextField(default="")
    amount = models.IntegerField()

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"payment of {self.amount}"


def test_a_payment_with_django(shop: psycopg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("shop.models")
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.models", module)
    monkeypatch.setattr(module, "Payment", Payment, raising=False)

    with open_ledger(database_url) as ledger, default_database(database_url):
        names: dict[str, Any] = {"ledger": ledger, "current_claim": current_claim}
        execute(unrun_block("docs/guides/ledger.md", "sync_to_async"), names)

        async def paid() -> list[bytes]:
            responses = [await names["async_view"](HttpRequest(), order) for order in ("django", "async")]
            await sync_to_async(connections.close_all)()  # its thread has its own
            return [response.content for response in responses]

        assert names["view"](HttpRequest(), "django").content == b'{"paid": "django"}'
        assert asyncio.run(paid()) == [b'{"paid": "django"}', b'{"paid": "async"}']
    assert shop.execute("SELECT order_id, amount FROM shop_payment").fetchall() == [("django", 10), ("async", 10)]


def test_a_django_view_that_commits_its_response(shop: psycopg.Connection, database_url: str) -> None:
    names: dict[str, Any] = {
        "transaction": transaction,
        "connection": connection,
        "idempotency": idempotency,
        "JsonResponse": JsonResponse,
        "Payment": Payment,
    }
    execute(unrun_block("docs/guides/http.md", "transaction.atomic"), names)
    urls: Any = types.ModuleType("urls")
    urls.urlpatterns = [path("payments", names["pay"])]

    with (
        open_ledger(database_url) as ledger,
        default_database(database_url),
        override_settings(ROOT_URLCONF=urls),
    ):
        app = WSGIIdempotencyMiddleware(get_wsgi_application(), store=ledger)
        with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://testserver") as client:
            answers = [client.post("/payments", headers={"Idempotency-Key": "django-1"}) for _ in range(2)]

    assert [(answer.status_code, answer.json()) for answer in answers] == [(201, {"payment": 1})] * 2
    assert [answer.headers.get("Idempotent-Replayed") for answer in answers] == [None, "true"]
    assert shop.execute("SELECT amount FROM shop_payment").fetchall() == [(10,)]


# Processes.


def test_a_worker_with_a_fault(tmp_path: Path) -> None:
    """The worker of the fault tests, which charges and then prints."""
    charges, url = tmp_path / "charges", f"sqlite:///{tmp_path}/ledger.db"
    block = unrun_block("docs/guides/testing.md", "wait_until_frozen")
    worker = [sys.executable, str(ROOT / "tests/testing/charging_process.py"), url, str(charges), "idempotent"]

    with open_ledger(url, lease_seconds=0.5) as ledger:
        names: dict[str, Any] = {"worker": worker, "ledger": ledger, "charge": lambda: "mine"}
        try:
            lines = execute(block, names)
        finally:
            if "child" in names:  # still frozen, if a line of the block fails
                names["child"].kill()
                names["child"].wait()
        entry = ledger.blocking.read("call", "order")

    assert lines == shown(block) == ["-9", "0"]
    assert charges.read_text("utf-8").splitlines() == ["charged"] * 2
    assert entry is not None
    assert entry.outcome is not None
    assert entry.outcome.body == b'"mine"'


def test_an_mcp_server_on_http(tmp_path: Path) -> None:
    """After the block of the same page that defines the server. Port 0: the system chooses, and the log tells."""
    block = unrun_block("docs/guides/mcp.md", "import uvicorn")
    page = ROOT / "docs/guides/mcp.md"
    defines = next(one.text for one in blocks(page) if one.kind == RUN and "server = mcp_server(" in one.text)
    program = f"{defines}\n{changed(block, {'port=8000': 'port=0'})}"
    command = [forked_python("mcp.server", "onceward.integrations.mcp", "uvicorn"), "-c", program]

    meta: Any = {"idempotency_key": "k"}

    async def refunded_twice(url: str) -> list[str]:
        async with connected(over_http(url)) as client:
            order = {"order_id": "42", "amount": 10}
            results = [await client.call_tool("refund", order, meta=meta) for _ in range(2)]
        return [cast("dict[str, str]", result.structured_content)["status"] for result in results]

    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended before it listened"
            found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
        try:
            assert asyncio.run(refunded_twice(f"{found[1]}/mcp")) == ["done", "replayed"]
        finally:
            process.terminate()
            _, log = process.communicate(timeout=20)
    assert "Finished server process" in log, "SIGTERM ends it cleanly"
