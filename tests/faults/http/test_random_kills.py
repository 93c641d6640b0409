"""Four workers, thirty-two clients that retry, and a worker killed with -9 about every second.

The whole minute is `make soak-http`; here are a few kills of it, on each store that several machines can share.
"""

from __future__ import annotations

from pathlib import Path

from tests.backends import Servers
from tests.faults.fork_server import ForkServer
from tests.faults.http.http_load import Load

KILLS = 6
# It takes a tenth of this; on a busy machine longer.
SECONDS_MAX = 60.0


def test_on_postgresql_every_bound_effect_happens_exactly_once_and_nothing_is_lost(
    fork_server: ForkServer, servers: Servers, tmp_path: Path
) -> None:
    paths = ("/once", "/repeat", "/once", "/hold", "/once", "/stream", "/hold-stream")

    figures = Load(fork_server, servers.postgres.create_database(), tmp_path, paths).run(SECONDS_MAX, kills_max=KILLS)

    assert figures.kills == KILLS
    assert figures.keys.keys() == set(paths)


def test_on_redis_everyone_gets_one_response_and_no_irreversible_request_is_repeated(
    fork_server: ForkServer, servers: Servers, tmp_path: Path
) -> None:
    paths = ("/repeat", "/hold", "/repeat", "/stream", "/hold", "/hold-stream")

    figures = Load(fork_server, servers.redis.fresh_url(), tmp_path, paths).run(SECONDS_MAX, kills_max=KILLS)

    assert figures.kills == KILLS
    assert figures.keys.keys() == set(paths)
