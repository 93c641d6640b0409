"""The sweep of the local runner while its database fails."""

from __future__ import annotations

import asyncio

import pytest
from tests.hub.turns.turn_harness import TurnHarness, echo
from tests.waiting import soon

from onceward.hub.db.engine import Database
from onceward.hub.turns.runners.local import LocalRunner
from onceward.ledger.open import open_ledger
from onceward.turns import Brain


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_sweep_that_fails_is_logged_once_and_so_is_its_recovery(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = open_ledger("memory:")
    harness = TurnHarness(database, ledger, Brain(echo))
    runner = LocalRunner(harness.engine, workers=1, sweep_seconds=0.01)
    sweeps: list[int] = []
    sweep_once = runner.sweep_once

    async def counted() -> None:
        sweeps.append(1)
        await sweep_once()

    async def story() -> None:
        harness.write("ALTER TABLE turns RENAME TO elsewhere")
        await runner.start()
        await soon(lambda: len(sweeps) > 3)
        harness.write("ALTER TABLE elsewhere RENAME TO turns")
        await soon(lambda: [record.msg for record in caplog.records][-1:] == ["turn_sweep_recovered"])
        await runner.stop()

    runner.sweep_once = counted  # type: ignore[method-assign]
    with caplog.at_level("INFO", "onceward.turns"), ledger:
        asyncio.run(story())

    failed, recovered = [record for record in caplog.records if str(record.name) == "onceward.turns"]
    assert (failed.msg, failed.levelname, failed.failure_count) == ("turn_sweep_failed", "WARNING", 1)  # type: ignore[attr-defined]
    assert recovered.failure_count >= 3  # type: ignore[attr-defined]
