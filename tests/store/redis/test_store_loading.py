from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from onceward.core.claim import Ref
from onceward.errors import StoreUnavailable
from onceward.store.redis import RedisStore

# The INFO reply of a durable Redis 6.2 while it loads its log after a restart: during that time it reports none.
INFO = b"# Persistence\r\nloading:1\r\naof_enabled:0\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n"


@pytest.fixture
def loading_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            line, _ = server.accept()
            with closing(line):
                while line.recv(4096):
                    line.sendall(b"$%d\r\n%b\r\n" % (len(INFO), INFO))

        thread = threading.Thread(target=serve)
        thread.start()
        port: int = server.getsockname()[1]
        yield port
        thread.join()


def test_a_redis_that_loads_its_log_after_a_restart_is_unavailable_and_not_volatile(
    loading_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(RedisStore(f"redis://127.0.0.1:{loading_port}")) as store, pytest.raises(StoreUnavailable):
        store.read([Ref("scope", "key")])

    assert not caplog.records
