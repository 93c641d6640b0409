"""Opening a Redis store: options of its URL, volatile servers, and concurrent openings."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.redis import RedisServer, prefix_of

from onceward import errors
from onceward.core.claim import Ref
from onceward.store import BatchFailed
from onceward.store.open import open_store
from onceward.store.redis import RedisStore
from onceward.store.redis.connection import parse_target
from onceward.testing.caller import SCOPE, begin


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(url)) as store:
        yield store


# Volatile configurations.


@pytest.mark.parametrize("options", [("--appendonly", "no"), ("--maxmemory-policy", "allkeys-lru")])
def test_a_volatile_server_warns_once_and_refuses_irreversible_effects(
    options: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(options=options) as server, closing(RedisStore(server.url())) as store:
        assert store.commit([begin("repeatable")])[0].applied
        with pytest.raises(errors.NotDurable, match="volatile=ok"):
            store.commit([begin("irreversible", repeatable=False)])
        with pytest.raises(BatchFailed):
            store.commit([begin("neighbour"), begin("irreversible", repeatable=False)])
        assert store.read([Ref(SCOPE, "irreversible"), Ref(SCOPE, "neighbour")]).entries == (None, None)
        server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        store.read([])

        assert [(record.name, record.levelno) for record in caplog.records] == [
            ("onceward.store.redis", logging.WARNING)
        ]
        with closing(RedisStore(f"{server.url()}?volatile=ok")) as accepting:
            assert accepting.commit([begin("irreversible", repeatable=False)])[0].applied


def test_a_durable_server_causes_no_warning(store: RedisStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.commit([begin(repeatable=False)])[0].applied
    assert caplog.records == []


# Opening.


def test_a_newer_schema_is_refused_and_nothing_is_written(url: str, redis_server: RedisServer) -> None:
    name = f"{prefix_of(url)}:{{00}}:schema"
    redis_server.execute("SET", name, 2)
    with closing(RedisStore(url)) as store:
        for _ in range(2):
            with pytest.raises(errors.SchemaTooNew):
                store.commit([begin()])

    assert redis_server.execute("KEYS", f"{prefix_of(url)}:*") == [name.encode()]


# Eight forks of a process that has imported everything: they open the store when all have started.
_OPEN_AND_CLAIM = """
import os, sys
from onceward.store.redis import RedisStore
from onceward.store.redis.connection import parse_target
from onceward.testing.caller import begin
started, start = os.pipe(), os.pipe()
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(start[1])
        os.write(started[1], b".")
        os.read(start[0], 1)
        os.write(1, b"%d\\n" % RedisStore(sys.argv[1]).commit([begin()])[0].applied)
        os._exit(0)
for _ in children:
    os.read(started[0], 1)
os.close(start[1])
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
"""


def test_eight_processes_open_an_empty_store_concurrently_and_one_gets_the_key(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _OPEN_AND_CLAIM, url], check=True, stdout=subprocess.PIPE, text=True)

    assert sorted(done.stdout.split()) == ["0"] * 7 + ["1"]


_FORK = """
import os, sys
from onceward.store.redis import RedisStore
from onceward.store.redis.connection import parse_target
from onceward.testing.caller import begin
store = RedisStore(sys.argv[1])
store.commit([begin("parent")])
connection = store._connection
child = os.fork()
if child == 0:
    store.abandon()
    answers = store.commit([begin("parent"), begin("child")])
    os._exit([answer.applied for answer in answers] != [False, True])
assert os.waitpid(child, 0)[1] == 0
assert [answer.applied for answer in store.commit([begin("child"), begin("after")])] == [False, True]
assert store._connection is connection
store.close()
"""


def test_a_forked_child_opens_its_own_connection_and_the_parent_keeps_working(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _FORK, url], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_each_database_number_is_separate(redis_server: RedisServer, url: str) -> None:
    other = url.replace("/0?", "/3?")
    with closing(RedisStore(url)) as here, closing(RedisStore(other)) as there:
        assert here.commit([begin()])[0].applied
        assert there.commit([begin()])[0].applied
    with redis_server.client(db=3) as client:
        assert client.keys(f"{prefix_of(url)}:*:schema")


def test_a_wrong_password_is_a_misconfiguration_and_not_shown(redis_server: RedisServer) -> None:
    with closing(RedisStore(f"redis://somebody:hush-hush@127.0.0.1:{redis_server.port}")) as store:
        with pytest.raises(errors.StoreMisconfigured, match="check the user and the password") as caught:
            store.commit([begin()])

        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "redis://host:port",
        "redis://:hush@host:99999",
        "redis://:hush/hush@host",
        "redis://user:12?hush=1@host",
        "redis://:hush#hush@host",
        "redis://host/zero",
        "redis://host/0?nonsense",
        "redis://:hush@host?retry_on_timeout=yes",
        "redis://host?socket_timeout=soon",
        "redis://host?volatile=yes",
        "redis://host?prefix={tag}",
        "redis://host?ssl_ca_certs=file",
        "redis://one,two",
        "redis+cluster://host/1",
        "redis+sentinel://host",
        "valkeyss://host",
    ],
)
def test_an_invalid_url_is_refused_before_connecting(url: str) -> None:
    with pytest.raises(errors.InvalidStoreUrl) as caught:
        RedisStore(url)

    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_without_its_driver_the_url_says_what_to_install() -> None:
    script = "import sys; sys.modules['redis'] = None; from onceward.store.open import open_store; open_store('redis://host')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "InvalidStoreUrl" in ended.stderr
    assert "onceward[redis]" in ended.stderr


def test_a_url_with_a_secure_scheme_is_accepted_without_connecting() -> None:
    open_store("rediss://user:hush@host:6380/1?ssl_cert_reqs=none").close()
    open_store("rediss+cluster://one:1,two:2,[::1]:3").close()


@pytest.mark.parametrize("rest", ["://host", "s://user:hush@host:6380/1?prefix=p", "+cluster://a,b", "s+cluster://a:1"])
def test_a_valkey_url_means_the_same_as_a_redis_url(rest: str) -> None:
    assert parse_target(f"valkey{rest}") == parse_target(f"redis{rest}")
    assert parse_target(f"valkey{rest}").secure == rest.startswith("s")
    open_store(f"Valkey{rest}").close()
