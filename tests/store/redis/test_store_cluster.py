"""Specifics of a Redis cluster: batches over several nodes, slots that move, nodes that fall silent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.servers.redis import RedisCluster, RedisServer, prefix_of

from onceward import errors
from onceward.core.claim import Ref, Verb
from onceward.core.outcome import Outcome
from onceward.store.redis import RedisStore
from onceward.testing.caller import KEY, SCOPE, begin, entry_of, move

KEYS = [f"key-{number}" for number in range(300)]
REFS = [Ref(SCOPE, key) for key in KEYS]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[RedisCluster]:
    """One to stop, to freeze and to move slots in."""
    with RedisCluster() as cluster:
        yield cluster


def entries_on(node: RedisServer, url: str) -> int:
    return len(node.execute("KEYS", f"{prefix_of(url)}:*:e:*"))


def scripts_run(cluster: RedisCluster) -> int:
    stats = [node.execute("INFO", "commandstats").get("cmdstat_evalsha", {}) for node in cluster.nodes]
    return sum(stat.get("calls", 0) for stat in stats)


class SlotMigration:
    """The slot of one key's bucket, which is being moved from one node to another."""

    def __init__(self, cluster: RedisCluster, key: str) -> None:
        bucket = hashlib.sha256(f"{SCOPE}\x00{key}".encode()).digest()[0]
        self._cluster = cluster
        self.slot: int = cluster.nodes[0].execute("CLUSTER", "KEYSLOT", f"{bucket:02x}")
        ports = {
            port: node_id.decode()
            for first, last, (_, port, node_id, *_), *_ in cluster.nodes[0].execute("CLUSTER", "SLOTS")
            if first <= self.slot <= last
        }
        self.source = next(node for node in cluster.nodes if node.port in ports)
        self.target = next(node for node in cluster.nodes if node.port not in ports)
        self._target_id = self.target.execute("CLUSTER", "MYID").decode()
        self.target.execute("CLUSTER", "SETSLOT", self.slot, "IMPORTING", ports[self.source.port])
        self.source.execute("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._target_id)

    def carry(self) -> None:
        """Move all keys of the slot."""
        names = self.source.execute("CLUSTER", "GETKEYSINSLOT", self.slot, 1000)
        self.source.execute("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *names)

    def finish(self) -> None:
        for node in (self.target, self.source):
            node.execute("CLUSTER", "SETSLOT", self.slot, "NODE", self._target_id)


def test_a_batch_over_many_buckets_is_applied_on_all_three_nodes(redis_cluster: RedisCluster) -> None:
    url = redis_cluster.fresh_url()
    with closing(RedisStore(url)) as store:
        held = [entry_of(result, applied=True) for result in store.commit([begin(key) for key in KEYS])]
        results = store.commit(
            [move(Verb.SETTLE, e.version, e.key, outcome=Outcome(body=e.key.encode())) for e in held]
        )
        settled = [entry_of(result, applied=True) for result in results]
    shares = [entries_on(node, url) for node in redis_cluster.nodes]

    assert [entry.ref for entry in settled] == REFS
    assert sum(shares) == len(KEYS)
    assert min(shares) > 50
    # From another node, whose plain URL does not say that it belongs to a cluster.
    with closing(RedisStore(f"{redis_cluster.nodes[2].url()}?prefix={prefix_of(url)}")) as another:
        assert another.read(REFS).entries == tuple(settled)
        assert not any(result.applied for result in another.commit([begin(key) for key in KEYS]))
        assert {entry.key for entry in another.scan(SCOPE, None, "", 500).entries} == set(KEYS)


def test_a_script_that_one_node_forgot_is_loaded_only_there(redis_cluster: RedisCluster) -> None:
    with closing(RedisStore(redis_cluster.fresh_url())) as store:
        store.commit([begin(key) for key in KEYS[:100]])
        redis_cluster.nodes[1].execute("SCRIPT", "FLUSH")
        before = scripts_run(redis_cluster)

        results = store.commit([begin(key) for key in KEYS[100:200]])

        assert all(result.applied for result in results)
        assert 100 < scripts_run(redis_cluster) - before < 200


def test_a_frozen_node_makes_the_batch_unavailable_and_nothing_is_sent_twice(own_cluster: RedisCluster) -> None:
    writes = [begin(key) for key in KEYS]
    with closing(RedisStore(f"{own_cluster.fresh_url()}&socket_timeout=0.5")) as store:
        store.read(REFS)
        before = scripts_run(own_cluster)
        own_cluster.nodes[0].freeze()
        try:
            with pytest.raises(errors.StoreUnavailable):
                store.commit(writes)
        finally:
            own_cluster.nodes[0].thaw()
        ran = scripts_run(own_cluster) - before
        entries = store.read(REFS).entries

        # The other two nodes ran theirs at once; the frozen one may or may not run its commands when it continues.
        assert 150 < ran <= len(writes)
        assert ran >= sum(entry is not None for entry in entries) > 150
        repeated = [result.entry for result in store.commit(writes)]
        assert [entry and entry.write_id for entry in repeated] == [write.write_id for write in writes]
        assert [entry for entry in entries if entry] == [
            now for now, then in zip(repeated, entries, strict=True) if then
        ]


def test_a_moved_slot_is_followed(own_cluster: RedisCluster) -> None:
    url = own_cluster.fresh_url()
    with closing(RedisStore(url)) as store:
        held = [entry_of(result, applied=True) for result in store.commit([begin(key) for key in KEYS])]
        migration = SlotMigration(own_cluster, KEYS[0])
        migration.carry()
        migration.finish()
        before = entries_on(migration.source, url)

        results = store.commit([move(Verb.SETTLE, entry.version, entry.key) for entry in held])

        assert all(result.applied for result in results)
        assert entries_on(migration.source, url) == before
        assert sum(entries_on(node, url) for node in own_cluster.nodes) == len(KEYS)


def test_while_a_slot_moves_its_entries_are_read_on_either_node_and_nothing_is_lost(own_cluster: RedisCluster) -> None:
    url = own_cluster.fresh_url()
    with closing(RedisStore(url)) as store:
        held = entry_of(store.commit([begin()])[0], applied=True)
        migration = SlotMigration(own_cluster, KEY)
        here = store.read([held.ref]).entries
        migration.carry()
        there = store.read([held.ref]).entries
        # One script needs all of its names in one place, which a node on the way cannot promise for a new one.
        write = begin()
        with pytest.raises(errors.StoreUnavailable):
            store.commit([write])
        migration.finish()

        assert here == there == (held,)
        assert entry_of(store.commit([write])[0], applied=False) == held
        assert store.commit([move(Verb.SETTLE, held.version)])[0].applied


def test_a_cluster_that_lost_a_node_is_unavailable_until_it_is_back(own_cluster: RedisCluster) -> None:
    url = own_cluster.fresh_url()
    with closing(RedisStore(url)) as store:
        held = [entry_of(result, applied=True) for result in store.commit([begin(key) for key in KEYS])]
        own_cluster.nodes[0].stop()
        try:
            for _ in range(2):
                with pytest.raises(errors.StoreUnavailable):
                    store.commit([begin(key) for key in KEYS])
        finally:
            own_cluster.nodes[0].start()
            own_cluster.wait_until_whole()

        assert store.read(REFS).entries == tuple(held)


def test_any_node_of_the_url_may_be_down(redis_cluster: RedisCluster) -> None:
    with RedisServer() as gone:
        port = gone.port
    url = redis_cluster.fresh_url().replace("://", f"://127.0.0.1:{port},")

    with closing(RedisStore(url)) as store:
        assert store.commit([begin()])[0].applied


def test_a_cluster_url_of_a_single_server_is_refused(redis_server: RedisServer) -> None:
    url = redis_server.url().replace("://", "+cluster://")
    with closing(RedisStore(url)) as store, pytest.raises(errors.InvalidStoreUrl, match="single server"):
        store.commit([begin()])


def test_one_volatile_node_makes_the_whole_cluster_volatile(caplog: pytest.LogCaptureFixture) -> None:
    with RedisCluster() as cluster, closing(RedisStore(cluster.url())) as store:
        cluster.nodes[2].execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        for _ in range(2):
            with pytest.raises(errors.WriteRefused):
                store.commit([begin(key, repeatable=False) for key in KEYS])

        # Of this store: the background job of a ledger that another test left open may log, too.
        assert len([record for record in caplog.records if record.name == "onceward.store.redis"]) == 1
        assert store.read(REFS).entries == (None,) * len(REFS)
