"""Sessions that interrupt and repeat themselves and stop waiting, on two hubs, one of which is killed now and then.

200 sessions for half a minute are `make soak-turns`; here are a few for a few seconds.
"""

from __future__ import annotations

from pathlib import Path

from tests.faults.turns.turn_load import Load
from tests.servers.postgres import PostgresServer

SESSIONS = 12
SECONDS = 3.0


def test_random_kills_lose_no_message_and_repeat_no_effect(
    postgres_server: PostgresServer, postgres_template: str, tmp_path: Path
) -> None:
    load = Load(postgres_server.create_database(postgres_template), tmp_path, sessions=SESSIONS, seed=1)

    figures = load.run(SECONDS)

    report = "\n".join(figures.lines())
    assert figures.kills >= 1, report
    # How much of what happens in so short a time is a matter of luck; the soak has all of it.
    assert figures.messages >= SESSIONS, report
    assert figures.turns["complete"] > 0, report
