"""A hub with two workers, two ledgers and commands share a pooler that has fewer connections than clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from tests.backends import Servers
from tests.faults.hub.followers import SocketFollower
from tests.faults.hub_database import connected_to, event_ids
from tests.hub.hub_process import environment, running_hub
from tests.hub.raw_client import Caller, workers_of
from tests.servers.pgbouncer import Pgbouncer
from tests.waiting import SECONDS_MAX

TOPICS = "/api/v1/topics"
# For the hub's workers, the ledgers and the commands together.
CONNECTIONS = 3
REQUESTS = 24
EFFECTS = 30
# Names of settings that Onceward changes.
_CHANGED = """
    SELECT name, setting FROM pg_settings WHERE source = 'session' AND name IN ('statement_timeout', 'lock_timeout', 'jit',
        'plan_cache_mode', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'synchronous_commit',
        'idle_in_transaction_session_timeout', 'default_transaction_isolation')
"""

# Runs the same effects as another process, each of which must happen once.
_LEDGER = """
import os, sys
from onceward import open_ledger
url, effects, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

def effect(number):
    with open(effects, "a") as file:
        file.write(f"{number}\\n")
    return number * number

with open_ledger(url) as ledger:
    print(sum(ledger.blocking.run(f"key-{n}", lambda n=n: effect(n), effect="irreversible") for n in range(count)))
"""


@pytest.fixture(scope="module")
def pooler(servers: Servers) -> Iterator[Pgbouncer]:
    with Pgbouncer(servers.postgres, pool_size=CONNECTIONS) as pooler:
        yield pooler


def test_six_processes_share_three_connections_and_one_of_them_is_killed(
    servers: Servers, pooler: Pgbouncer, tmp_path: Path
) -> None:
    server_url = servers.postgres.create_database()
    url = pooler.url(server_url)
    effects = tmp_path / "effects"
    with running_hub(data_dir=tmp_path / "data", args=["--database", url, "--workers", "2"]) as hub:
        ask = Caller(hub.port)
        with contextlib.ExitStack() as stack:
            follower = stack.enter_context(SocketFollower(hub.port))
            ledgers = [stack.enter_context(_started("-c", _LEDGER, url, str(effects), str(EFFECTS))) for _ in range(2)]
            commands = [
                stack.enter_context(_started("-m", "onceward", *command, "--json"))
                for command in (
                    ("token", "list", "--database", url),
                    ("claims", "list", "--ledger", url),
                )
            ]
            threads = stack.enter_context(ThreadPoolExecutor(8))
            sent = [
                threads.submit(
                    ask.request_until_final, "POST", TOPICS, {"title": f"topic {number}"}, key=f"topic-{number}"
                )
                for number in range(REQUESTS)
                for _ in range(2)
            ]
            sent[0].result(SECONDS_MAX)
            os.kill(workers_of(hub)[0], signal.SIGKILL)
            answers = [one.result(SECONDS_MAX) for one in sent]
            sums = [int(_output(process)) for process in ledgers]
            shown = [json.loads(_output(process)) for process in commands]
            with connected_to(server_url) as database:
                last = event_ids(database)
            seen = follower.wait_for(last[-1])

        listed = ask.get(f"{TOPICS}?limit=100").json["topics"]

    assert {answer.status for answer in answers} == {201}
    assert Counter(topic["title"] for topic in listed) == {f"topic {number}": 1 for number in range(REQUESTS)}
    assert seen == last, "the follower got each event once, in order"
    assert sums == [sum(number * number for number in range(EFFECTS))] * 2
    assert sorted(map(int, effects.read_text().split())) == list(range(EFFECTS))
    assert shown[0] == {"tokens": []}
    assert "claims" in shown[1]
    assert _settings_of_all_sessions(url) == [[]] * CONNECTIONS


def _started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def _output(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, errors
    return output


def _settings_of_all_sessions(url: str) -> list[list[tuple[str, str]]]:
    """Return our settings in each session of the pooler. An open transaction keeps its session from the others."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(url)) for _ in range(CONNECTIONS)]
        for client in clients:
            client.execute("SELECT 1")
        return [client.execute(_CHANGED).fetchall() for client in clients]
