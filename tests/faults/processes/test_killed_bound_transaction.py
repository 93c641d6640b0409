"""kill -9 at each point of a bound transaction: one row and one outcome, on the connections of other packages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.backends import BACKENDS, Servers
from tests.connections import CREATE
from tests.faults.bound_worker import POINTS
from tests.faults.fork_server import ForkServer
from tests.faults.worker_process import WorkerProcess


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    with closing(ForkServer("tests.faults.bound_worker")) as fork_server:
        yield fork_server


def execute(url: str, sql: str) -> list[tuple[Any, ...]]:
    sqlite = url.startswith("sqlite")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///")) if sqlite else psycopg.connect(url)) as connection:
        rows = connection.execute(sql)
        found = rows.fetchall() if rows.description else []
        connection.commit()
        return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sqlite", "of_django"), ("postgres", "of_django"), ("postgres", "of_asyncpg"), ("postgres", "of_asyncpg_pool")],
)
def test_kill_9_at_any_point_leaves_one_row_and_one_outcome(
    servers: Servers, tmp_path: Path, start_worker: Callable[[], WorkerProcess], name: str, kind: str
) -> None:
    url = BACKENDS[name].url(servers, tmp_path)
    execute(url, "DROP TABLE IF EXISTS payments")
    execute(url, CREATE)
    killed: dict[str, int] = {}
    for point in POINTS:
        doomed = start_worker()
        doomed.order("pay", url=url, kind=kind, key=point, pause=point)
        for passed in POINTS[: POINTS.index(point) + 1]:
            doomed.reach(passed)
        doomed.kill()
        killed[point] = doomed.pid
    retries = [start_worker(), start_worker()]
    values: dict[str, list[int]] = {}
    for point in POINTS:
        for retry in retries:
            retry.order("pay", url=url, kind=kind, key=point)
            values.setdefault(point, []).append(retry.result()["value"])

    rows = {key: int(pid) for key, pid in (row[0].split() for row in execute(url, "SELECT order_id FROM payments"))}
    assert len(execute(url, "SELECT order_id FROM payments")) == len(POINTS)
    for point in POINTS:
        paid_by = killed[point] if point == "committed" else retries[0].pid
        assert (rows[point], values[point]) == (paid_by, [paid_by, paid_by]), point
