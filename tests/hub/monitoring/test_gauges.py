"""The gauges on `/metrics` of a hub."""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.hub.in_process_hub import in_process_hub

from onceward import Ledger, metrics
from onceward.core.claim import Claim
from onceward.hub.config import data_folder
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.monitoring.gauges import COUNT_TURNS, HubGauges
from onceward.hub.web.metrics import render
from onceward.store.memory import MemoryStore

TURN = text("""
    INSERT INTO turns (id, turn_group_id, principal, tenant_id, agent_id, customer_id, channel, session_key, state,
                       accumulate_until, created_at, updated_at)
    VALUES (:id, 'g', 'p', 't', 'a', 'c', 'web', :id, :state, '', '', '')
""")


@pytest.fixture(autouse=True)
def long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a long timeout: on a busy machine, a read takes longer than a scrape would wait for it."""
    monkeypatch.setattr(metrics, "WAIT_SECONDS", 30.0)


def add_turns(database: Database, **count_of_state: int) -> None:
    with database.write() as tx:
        for state, count in count_of_state.items():
            for number in range(count):
                tx.execute(TURN, {"id": f"{state}{number}", "state": state})


def samples(rendered: str) -> dict[str, float]:
    rows = [line.rpartition(" ") for line in rendered.splitlines() if line.startswith("onceward_")]
    found = {name: float(value) for name, _, value in rows}
    assert len(found) == len(rows), "a name is shown twice"
    return found


def test_a_hub_shows_its_doubts_its_turns_and_its_version(database: Database, tmp_path: Path) -> None:
    add_turns(database, failed=2, superseded=1, complete=3)
    url = database.engine.url.render_as_string(hide_password=False)
    config = Config(HubSettings(data_dir=str(tmp_path), database=url, ledger=f"sqlite:///{tmp_path}/keys.db"))
    with data_folder.ledger(config) as ledger:
        claim = ledger.blocking.begin("charges", "charge:1", repeatable=False)
        assert isinstance(claim, Claim)
        assert ledger.blocking.doubt(claim)
    with in_process_hub(config) as hub:
        shown = samples(hub.get("/metrics").text)

    assert shown["onceward_in_doubt"] == 1
    assert shown["onceward_in_doubt_oldest_seconds"] > 0
    states = ("accumulating", "processing", "committing", "complete", "superseded", "failed")
    assert [shown[f'onceward_turns{{state="{state}"}}'] for state in states] == [0, 0, 0, 3, 1, 2]
    (build,) = [name for name in shown if name.startswith("onceward_build_info")]
    assert f'version="{version("onceward")}"' in build


def test_workers_that_add_up_their_counters_do_not_add_up_the_gauges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "counters"
    folder.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    with closing(open_database(f"sqlite:///{tmp_path}/hub.db")) as database, closing(Ledger(MemoryStore())) as ledger:
        migrate(database)
        add_turns(database, failed=2)
        workers = [HubGauges(database, ledger), HubGauges(database, ledger)]
        shown = [samples(render(one).decode()) for one in workers]

    assert [one['onceward_turns{state="failed"}'] for one in shown] == [2, 2]


def test_the_gauges_of_a_database_and_a_ledger_that_are_down_are_absent() -> None:
    with (
        closing(open_database("postgresql://127.0.0.1:1/none?connect_timeout=1")) as database,
        closing(Ledger(MemoryStore())) as ledger,
    ):
        ledger.close()
        shown = samples(render(HubGauges(database, ledger)).decode())

    assert [
        name.partition("{")[0] for name in shown if name.startswith(("onceward_in", "onceward_t", "onceward_b"))
    ] == ["onceward_build_info"]


def test_turns_are_counted_through_indexes(database: Database) -> None:
    add_turns(database, failed=300, complete=300)
    with database.write() as tx:
        if not database.is_sqlite:
            tx.execute(text("ANALYZE turns"))
            tx.execute(text("SET enable_seqscan = off"))
        explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
        plan = " ".join(str(row) for row in tx.execute(text(explain + COUNT_TURNS.sql)))

    assert "idx_turns_due" in plan or "idx_turns_running" in plan or "idx_turns_unfinished" in plan
    assert "idx_turns_finished" in plan
    assert "Seq Scan" not in plan
