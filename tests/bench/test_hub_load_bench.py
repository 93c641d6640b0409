"""The hub under load: wrong responses end a run, tables grow as they should, and verdicts follow from the figures.

A tiny run of it is part of `test_bench_smoke.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy
from bench.contest import Unable
from bench.hub.contest import BARE, LoadFigures, Round, compete
from bench.hub.grown import TABLES, fill
from bench.hub.load import main, rendered
from bench.hub.load_table import EMPTY, HubLoad, judge, render, size_name
from bench.hub.memory import Memory
from bench.hub.peers import DBOS, POCKETBASE
from bench.hub.rows import BARE_GET, BARE_POST, CHAT, DUPLICATE, NEW, ROWS, TASK, Place, Row, WrongResponse, rows_of
from bench.process_tree import cpu_seconds, resident_bytes
from tests.hub.in_process_hub import Client, in_process_hub

from bench import names
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import Database

_PLACE = Place("top_1", [b"f" * 32])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (b"200 OK", b'{"attachment":{"dedupe_key":"url:TOKEN"},"event_id":7}'),
        (b"500 Internal Server Error", b'{"attachment":{"dedupe_key":"url:TOKEN"},"event_id":7}'),
        (b"201 Created", b'{"attachment":{"dedupe_key":"url:TOKEN"},"event_id":null}'),
        (b"201 Created", b'{"attachment":{"dedupe_key":"url:that-of-another-request"},"event_id":7}'),
    ],
)
def test_a_response_that_is_wrong_or_belongs_to_another_request_is_refused(status: bytes, body: bytes) -> None:
    row = rows_of(8787, _PLACE)[NEW]
    token = row.request(3, 0).rpartition(b"url:")[2].removesuffix(b'"}')
    right = b'HTTP/1.1 201 Created\r\n\r\n{"attachment":{"dedupe_key":"url:%b"},"event_id":7}' % token

    row.check(3, right)
    with pytest.raises(WrongResponse, match="new: expected"):
        row.check(3, b"HTTP/1.1 %b\r\n\r\n%b" % (status, body.replace(b"TOKEN", token)))


def test_all_requests_of_a_row_differ() -> None:
    rows = rows_of(8787, _PLACE)

    for name in ROWS[:-1]:
        sent = {rows[name].request(0, number) for number in range(3)}
        assert len(sent) == (1 if name == DUPLICATE else 3)


@dataclass
class Scripted:
    """A contestant with fixed rates, and a log of what was measured."""

    name: str
    rows: tuple[str, ...]
    log: list[tuple[str, str]]
    rates: dict[str, float] = field(default_factory=dict)
    fails: Exception | None = None
    is_peer: bool = False

    def has(self, row: str) -> bool:
        return row in self.rows

    def measure(self, row: str, seconds: float, connections: int) -> Round:
        assert (seconds > 0, connections) == (True, 32)
        self.log.append((self.name, row))
        if self.fails is not None:
            raise self.fails
        return Round(self.rates.get(row, 100.0))


def test_each_row_is_measured_between_two_runs_of_its_bare_route() -> None:
    log: list[tuple[str, str]] = []
    bare = Scripted(BARE, (BARE_POST, BARE_GET), log)
    hub = Scripted("hub", (NEW, DUPLICATE), log, {NEW: 25.0})
    peer = Scripted("peer", (NEW,), log, fails=Unable("It is tired."), is_peer=True)

    figures = compete(bare, [hub, peer], [NEW, DUPLICATE], rounds=1, seconds=0.1)

    assert log[-5:] == [(BARE, BARE_POST), ("hub", NEW), (BARE, BARE_POST), ("hub", DUPLICATE), (BARE, BARE_POST)]
    assert figures.unable == {("peer", NEW): "It is tired."}
    summary = figures.summary("hub", NEW)
    assert summary is not None
    assert summary.ratio == 0.25


@pytest.mark.parametrize("error", [WrongResponse("a duplicate is new"), Unable("It closed the connection.")])
def test_a_hub_that_fails_ends_the_run(error: Exception) -> None:
    bare = Scripted(BARE, (BARE_POST,), [])

    with pytest.raises(type(error)):
        compete(bare, [Scripted("hub", (NEW,), [], fails=error)], [NEW], rounds=1, seconds=0.1)


def test_goals_are_judged_by_the_rounds_and_the_worst_row() -> None:
    load = HubLoad(sizes=(10_000,), versions={POCKETBASE: "0.1"})
    load.contests[names.SQLITE] = LoadFigures(
        {
            (names.HUB_ONE, NEW): [_round(34, cpu=1.0), _round(3.4, cpu=1.0, bare=10.0), _round(60, cpu=1.0)],
            (names.HUB_TWO, NEW): [_round(50, p99=0.9, slowest=0.95, cpu=1.2)] * 3,
            (names.HUB_ONE, DUPLICATE): [_round(46, slowest=1.05)],
            (names.HUB_ONE, CHAT): [_round(1.3)],
            (POCKETBASE, NEW): [_round(100), _round(10), _round(100)],
            (DBOS, CHAT): [Round(0.5)],
        },
        {(POCKETBASE, DUPLICATE): "It is away."},
    )
    load.grown[names.SQLITE] = LoadFigures(
        {
            (EMPTY, NEW): [_round(100)],
            ("10⁴", NEW): [_round(95)],
            (EMPTY, CHAT): [_round(10)],
            ("10⁴", CHAT): [_round(7)],
        }
    )
    load.memory[names.SQLITE] = Memory(100_000, 100 * 2**20, 104 * 2**20)

    verdicts = [(goal.what.partition(",")[0], goal.found, goal.verdict) for goal in judge(load) if goal.found]
    text = render(load, connections=32, rounds=3, seconds=1.5)

    assert verdicts == [
        ("topic attachment", "0.34", "reached"),
        ("topic attachment", "0.46", "close"),
        ("`/chat` with `Prefer: wait`", "0.013", "**not reached**"),
        ("p99 ÷ p50", "9.00", "**not reached**"),
        ("seconds of the slowest request (topic attachment", "1.05", "close"),
        ("CPU per request", "1.20", "close"),
        ("topic attachment", "0.34", "**not reached**"),
        ("a turn ÷ DBOS workflow", "2.60", "**not reached**"),
        ("rate with 10⁴ rows ÷ empty", "0.70", "**not reached**"),
        ("memory after many requests ÷ before", "1.04", "reached"),
    ]
    assert "| SQLite FULL | PocketBase | topic attachment, duplicate | -[^l1] |" in text
    assert "[^l1]: It is away." in text
    assert "| SQLite FULL | DBOS workflow, one step | `/chat` with `Prefer: wait`, idle brain | 0 |  |  |  |" in text
    assert "| SQLite FULL | topic attachment, new | 0.95 |" in text
    assert "| SQLite FULL | 100,000 requests | 100.0 MiB | 104.0 MiB |" in text


def test_a_developer_sees_rate_ratio_latencies_and_cpu_time_of_each_row() -> None:
    figures = LoadFigures(
        {
            ("hub, 1 w", NEW): [_round(34, cpu=0.001), _round(40, cpu=0.003), _round(36, cpu=0.002)],
            (BARE, BARE_POST): [_round(100)],
        }
    )

    heading, ours, bare = (line.split() for line in rendered(figures, ["hub, 1 w"], [NEW]).splitlines())

    assert heading[-4:] == ["CPU", "µs/rq", "db", "µs/rq"]
    assert ours == ["hub,", "1", "w", "new", "36", "0.360", "100.00", "200.00", "2.0", "300.0", "2,000", "0"]
    assert bare[:4] == ["bare", "FastAPI", "bare-post", "100"]


def test_an_unknown_row_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rows", "new,old"])

    assert "unknown rows ['old']; the rows are new, new-keyed," in capsys.readouterr().err


def _round(rate: float, *, p99: float = 0.2, slowest: float = 0.3, cpu: float = 0.0, bare: float = 100.0) -> Round:
    return Round(rate, p50=0.1, p99=p99, slowest=slowest, cpu=cpu, bare=bare)


@pytest.mark.parametrize(("count", "name"), [(10_000, "10⁴"), (1_000_000, "10⁶"), (300, "300")])
def test_a_grown_hub_is_named_by_its_rows(count: int, name: str) -> None:
    assert size_name(count) == name


def test_filled_tables_have_more_of_the_rows_that_a_hub_wrote(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    config = Config(HubSettings(data_dir=str(tmp_path), database=database_url, ledger=f"sqlite:///{tmp_path}/keys.db"))
    with in_process_hub(config) as client:
        place = Place(str(client.post("/api/v1/topics", json={"title": "One"}).json()["topic"]["id"]), [b"d" * 32])
        client.post("/v1/tasks", json={"id": TASK, "title": "One"})
        rows = rows_of(8787, place)
        for name in ROWS:
            if name != DUPLICATE:
                _send(client, rows[name])
        before = _counts(database)

        fill(database_url, 100)

        assert {name: count - before[name] for name, count in _counts(database).items()} == dict.fromkeys(before, 100)
        for name in ROWS:
            if name != DUPLICATE:
                _send(client, rows[name])


def _send(client: Client, row: Row) -> None:
    """Send a request of a row without a socket."""
    head, _, body = row.request(0, 0).partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    method, path, _ = first.split()
    sent = dict(header.split(": ", 1) for header in headers)
    response = client.request(method, path, content=body, headers=sent)
    row.check(0, f"HTTP/1.1 {response.status_code} \r\n\r\n".encode() + response.content)


def _counts(database: Database) -> dict[str, int]:
    pkm = "pkm_" if database.is_sqlite else "pkm."
    tables = [table.name.format(pkm=pkm) for table in TABLES]
    with database.read() as tx:
        return {name: tx.execute(sqlalchemy.text(f"SELECT count(*) FROM {name}")).scalar_one() for name in tables}  # noqa: S608  # ours


def test_the_time_and_the_memory_of_children_count() -> None:
    burn = "import time\nwhile time.process_time() < 0.15: pass"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('done', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        assert cpu_seconds(process.pid) >= 0.1
        assert resident_bytes(os.getpid()) > resident_bytes(process.pid) > 1_000_000
        assert cpu_seconds(os.getpid()) >= time.process_time() - 0.1
