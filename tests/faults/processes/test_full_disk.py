"""No space left for the SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.faults.worker_process import Effects, WorkerProcess


def test_a_full_disk_is_reported_leaves_no_half_writes_and_is_forgotten_when_there_is_room(
    tmp_path: Path, effects: Effects, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker, url = start_worker(), f"sqlite:///{tmp_path}/ledger.db"

    def ask(key: str, **options: object) -> dict[str, str]:
        worker.order("run", url=url, key=key, effect="irreversible", lease=0.3, **options)
        result: dict[str, str] = worker.result()
        return result

    recorded = ask("recorded")
    not_recorded = ask("not recorded", fill_disk=True)
    not_claimed = ask("not claimed")
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        health = db.execute("PRAGMA integrity_check").fetchall()
        kept = dict(db.execute("SELECT key, status FROM platform_idempotency_keys"))
    db.close()
    worker.order("limit", bytes=None)
    worker.result()

    assert not_recorded == {"key": "not recorded", "error": "store-unavailable"}
    assert not_claimed == {"key": "not claimed", "error": "store-unavailable"}
    assert health == [("ok",)]
    assert kept == {"recorded": "completed", "not recorded": "in_progress"}
    assert ask("recorded") == recorded
    assert ask("not recorded") == {"key": "not recorded", "error": "in-doubt"}
    assert "value" in ask("not claimed")
    assert effects.counts() == {"recorded": 1, "not recorded": 1, "not claimed": 1}
