"""The Redis store: a script decides each write inside the server, and a pipeline sends a batch.

`commit.lua` contains the claim state machine, and describes the layout of the data. This module encodes writes as
arguments of the script and decodes its replies, and `connection.py` sends them. Redis runs the script once per write,
so each write of a batch is atomic by itself and reads the clock for itself: "once per batch" in rule 5 means once per
write here.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import TypeAlias, cast

from onceward.core.claim import UNFINISHED, Append, Begin, Entry, Mark, Move, Ref, Status, Write, WriteResult
from onceward.core.log_event import log_event
from onceward.errors import InvalidOption, NotDurable, StoreClosed
from onceward.store import PAGE_MAX, BatchFailed, Clock, Page, Reading, needs_new_schema
from onceward.store.claim_cache import ClaimCache
from onceward.store.dispatch.inflight import SentBatch
from onceward.store.redis.connection import BUCKETS, BucketCommand, RedisConnection, parse_target
from onceward.store.redis.replies import split, to_entry, to_result
from onceward.store.redis.resp import Argument, BucketNames, RedisPipeline, bucket_of, encode, encode_begin, encode_move
from onceward.store.redis.schema import check_schema, require_new_schema

# A scan that finds few matching entries stops after this many pages and returns its cursor, because other callers wait.
SCAN_STEPS_MAX = 20

_SCRIPT = resources.files("onceward.store.redis").joinpath("commit.lua").read_text("utf-8")
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest().encode()
_log = logging.getLogger("onceward.store.redis")

Place: TypeAlias = tuple[int, bytes]  # a bucket, and a member of its indexes: scope NUL key


class RedisStore:
    """A ledger in Redis 6.2 or later, or in a Redis cluster. It is as durable as the server (see `?volatile=ok`)."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._target = parse_target(url)
        self._names = [_names(self._target.prefix, bucket) for bucket in range(BUCKETS)]
        self._buckets = [bucket_of(names, _SHA) for names in self._names]
        self._clock = clock
        self._nodes = list(self._target.nodes)
        self._connection: RedisConnection | None = None
        self._cache = ClaimCache()
        self._closed = False
        self._warned = False
        self._indexed = False
        self._schema_is_required = False

    def commit(self, writes: Sequence[Write]) -> list[WriteResult]:
        encoded = self.encode_batch()
        encoded.add(writes)
        if self._must_require_schema(writes):
            self._send(require_new_schema(self._target.prefix))
            self._schema_is_required = True
        try:
            replies = self._send(encoded.calls, durable=is_irreversible(writes))
        except NotDurable:
            if len(writes) == 1:
                raise
            # Nothing was sent. The batcher halves the batch until the refused write is alone.
            raise BatchFailed("a write of this batch needs a Redis that is durable") from None
        return self.results_of(encoded, replies)

    def _must_require_schema(self, writes: Sequence[Write]) -> bool:
        """Return whether processes of schema 1 must be kept out before these writes."""
        return not self._schema_is_required and any(map(needs_new_schema, writes))

    def encode_batch(self) -> RedisBatch:
        return RedisBatch(self)

    def send_batch(self, encoded: RedisBatch) -> SentBatch | None:
        connection, durable = self._connection, is_irreversible(encoded.writes)
        if (
            not encoded.writes
            or connection is None
            or not connection.can_pipeline(durable=durable)
            or connection.is_stale()
            or self._must_require_schema(encoded.writes)
        ):
            return None
        with self.closing_on_error():
            pipeline = connection.send_nowait(encoded.calls)
            return None if pipeline is None else _RedisSentBatch(self, connection, encoded, pipeline)

    def results_of(self, encoded: RedisBatch, replies: Sequence[object]) -> list[WriteResult]:
        results = [
            to_result(write, reply, cached)
            for write, reply, cached in zip(encoded.writes, replies, encoded.known, strict=True)
        ]
        self._cache.update([(write.scope, write.key) for write in encoded.writes], results)
        return results

    def read(self, refs: Sequence[Ref]) -> Reading:
        # With no refs, read an entry that cannot exist, because the result must contain the time.
        found = self._read([_place(*ref) for ref in refs] or [(0, b"")], "")
        # The earliest time, so that no entry is older than the time of the reading.
        return Reading(min(now for now, _ in found), tuple(entry for _, entry in found)[: len(refs)])

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        at = _from_cursor(after)
        found: list[tuple[Place, Entry]] = []
        for _ in range(SCAN_STEPS_MAX):
            # Without a filter, one entry more than the page shows whether there are more.
            places = self._places(scope, status, at, limit + 1 - len(found) if status is None else PAGE_MAX)
            if not places:
                return Page(tuple(entry for _, entry in found), "")
            at = places[-1]
            entries = self._read(places, status or "")
            found += [(place, entry) for place, (_, entry) in zip(places, entries, strict=True) if entry is not None]
            if len(found) > limit:
                return Page(tuple(entry for _, entry in found[:limit]), _to_cursor(found[limit - 1][0]))
        return Page(tuple(entry for _, entry in found), _to_cursor(at))

    def purge(self, limit: int) -> int:
        now = self._now()
        purged = 0
        while purged < limit:
            # The hash distributes entries evenly, so an equal share of each bucket usually gives the page at once.
            share = -(-(limit - purged) // BUCKETS)
            calls = [_script(bucket, [names.due], "due", now, b"", share) for bucket, names in enumerate(self._names)]
            purges = [
                _script(bucket, [names.entry + member, names.chunks + member, *names[2:5]], "purge", now, member)
                for bucket, (names, members) in enumerate(zip(self._names, self._send(calls), strict=True))
                for member in cast("list[bytes]", members)
            ]
            if not purges:
                break
            purged += sum(cast("list[int]", self._send(purges[: limit - purged])))
        return purged

    def lapsed(self, limit: int) -> Sequence[Entry]:
        self._index_once()
        share = -(-limit // BUCKETS)
        calls = [_script(b, [names.lapse], "lapsed", self._now(), b"", share) for b, names in enumerate(self._names)]
        places = [
            (bucket, member)
            for bucket, members in enumerate(self._send(calls))
            for member in cast("list[bytes]", members)
        ]
        return sorted(self._reindex(places), key=lambda entry: entry.lease_until)[:limit]

    def _index_once(self) -> None:
        """Add the claims that processes of schema 1 did not index to the index of lapses, once per store object."""
        if not self._indexed:
            at = _from_cursor("")
            while places := self._places(None, Status.IN_PROGRESS, at, PAGE_MAX):
                self._reindex(places)
                at = places[-1]
            self._indexed = True

    def _reindex(self, places: Sequence[Place]) -> list[Entry]:
        """Correct the index of lapses for these places, and return their claims that lapsed and are not repeatable."""
        now = self._now()
        keys = [(b, [self._names[b].entry + member, self._names[b].lapse], member) for b, member in places]
        replies = self._send([_script(bucket, names, "check", now, member) for bucket, names, member in keys])
        return [
            entry
            for (_, member), reply in zip(places, replies, strict=True)
            if reply is not None and (entry := _entry_of(member, reply)[1]) is not None
        ]

    def chunks(self, ref: Ref, version: int, after: int, limit: int) -> list[bytes]:
        if limit <= 0:
            return []
        bucket, member = _place(*ref)
        names = self._names[bucket]
        keys = [names.entry + member, names.chunks + member]
        replies = self._send([_script(bucket, keys, "chunks", self._now(), member, version, after, limit)])
        return cast("list[bytes]", replies[0])

    def check(self) -> None:
        """Check that the server accepts writes (see `store/check.py`), with a write that changes nothing."""
        self.read([])
        self._send([(0, encode("SET", f"{self._target.prefix}:{{00}}:schema", 1, "NX"))])

    def abandon(self) -> None:
        # The driver never uses a connection that another process opened, not even when it is garbage collected.
        self._connection = None
        self._cache.clear()

    def close(self) -> None:
        self._closed = True
        self.disconnect()

    def _now(self) -> str:
        """Return the pinned time, or "" for the server's own clock."""
        return "" if self._clock is None else str(self._clock())

    def _send(self, calls: Sequence[BucketCommand], *, durable: bool = False) -> list[object]:
        if self._connection is not None and self._connection.is_stale():
            self.disconnect()
        with self.closing_on_error():
            return (self._connection or self._open()).send(calls, durable=durable)

    @contextmanager
    def closing_on_error(self) -> Iterator[None]:
        """Close the connection if the block raises."""
        try:
            yield
        except NotDurable:
            raise
        except BaseException:
            # Replies may be unread, also after an interrupt, and must not be taken for those of another call.
            self.disconnect()
            # If the first node of a cluster is the problem, the next call tries another one first.
            self._nodes = [*self._nodes[1:], self._nodes[0]]
            raise

    def _open(self) -> RedisConnection:
        if self._closed:
            raise StoreClosed("the Redis store is closed")
        connection = RedisConnection(self._target, _SCRIPT, self._warn)
        try:
            self._nodes = connection.open(self._nodes)
            check_schema(connection, self._target.prefix)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def disconnect(self) -> None:
        self._cache.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _warn(self, server: str) -> None:
        if not self._warned:
            self._warned = True
            log_event(
                _log.warning,
                "redis_not_durable",
                server=server,
                hint="this Redis may lose acknowledged writes; set appendonly yes and maxmemory-policy noeviction",
            )

    def encoded(self, writes: Sequence[Write]) -> Iterator[tuple[BucketCommand, Entry | None]]:
        """Yield the command of each write, and its cached entry, which the reply may omit."""
        now = self._now()
        for write in writes:
            known = self._cache.known(write)
            yield self._write(write, now, "" if known is None else known.write_id), known

    def _write(self, write: Write, now: str, known: str) -> BucketCommand:
        member = f"{write.scope}\x00{write.key}"
        number = _bucket(member.encode())
        match write:
            case Begin():
                return number, encode_begin(self._buckets[number], member, now, write)
            case Move():
                return number, encode_move(self._buckets[number], member, now, write, known)
            case Append():
                names, place = self._names[number], member.encode()
                keys = [names.entry + place, names.chunks + place]
                written = (write.write_id, write.version, write.seq)
                return _script(number, keys, "append", now, place, *written, *write.chunks)
            case Mark():
                place = member.encode()
                written = (write.write_id, write.version, write.seq)
                entry = self._names[number].entry + place
                return _script(number, [entry], "mark", now, place, *written, write.text)

    def _read(self, places: Sequence[Place], status: str) -> list[tuple[int, Entry | None]]:
        now = self._now()
        calls = [_script(b, [self._names[b].entry + member], "read", now, member, status) for b, member in places]
        found: list[tuple[int, Entry | None]] = []
        for (_, member), reply in zip(places, self._send(calls), strict=True):
            found.append((0, None) if reply is None else _entry_of(member, reply))
        return found

    def _places(self, scope: str | None, status: Status | None, after: Place, wanted: int) -> list[Place]:
        """Return the next members of the index, in order; an empty list means the end.

        The list has fewer than `wanted` members near the end, or if members were purged meanwhile.
        """
        index = 3 if status in UNFINISHED else 2
        first, member = after
        low, high = (b"-", b"+") if scope is None else (b"[%s\x00" % scope.encode(), b"(%s\x01" % scope.encode())
        while first < BUCKETS:
            ranges = [(bucket, (self._names[bucket][index], low, high)) for bucket in range(first, BUCKETS)]
            if member and member >= low[1:]:
                ranges[0] = (first, (self._names[first][index], b"(" + member, high))
            counts = cast("list[int]", self._send([(bucket, encode("ZLEXCOUNT", *span)) for bucket, span in ranges]))
            calls: list[BucketCommand] = []
            total = 0
            for (bucket, span), count in zip(ranges, counts, strict=True):
                if count and total < wanted:
                    calls.append((bucket, encode("ZRANGEBYLEX", *span, "LIMIT", 0, wanted)))
                    total += count
            if not calls:
                return []
            places = [
                (bucket, found)
                for (bucket, _), members in zip(calls, self._send(calls), strict=True)
                for found in cast("list[bytes]", members)
            ]
            if places:
                return places[:wanted]
            # All counted members were purged meanwhile. Continue after them.
            first, member = calls[-1][0] + 1, b""
        return []


class RedisBatch:
    """Encoded writes, and the entries that were cached when they were encoded."""

    __slots__ = ("_store", "calls", "known", "writes")

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.writes: list[Write] = []
        self.calls: list[BucketCommand] = []
        self.known: list[Entry | None] = []

    def add(self, writes: Sequence[Write]) -> None:
        try:
            for call, known in self._store.encoded(writes):
                self.calls.append(call)
                self.known.append(known)
        except UnicodeEncodeError as error:
            raise BatchFailed(
                f"a write of this batch contains a lone surrogate, which is not valid text: {error}"
            ) from None
        self.writes += writes

    def send(self) -> SentBatch | None:
        return self._store.send_batch(self)


class _RedisSentBatch:
    """A batch that was sent to the server; see `store/dispatch/inflight.py`."""

    __slots__ = ("_connection", "_encoded", "_pipeline", "_store")

    def __init__(
        self, store: RedisStore, connection: RedisConnection, encoded: RedisBatch, pipeline: RedisPipeline
    ) -> None:
        self._store = store
        self._connection = connection
        self._encoded = encoded
        self._pipeline = pipeline

    @property
    def must_block(self) -> bool:
        return self._pipeline.must_block

    @property
    def received(self) -> bool:
        return self._pipeline.is_whole

    def fileno(self) -> int:
        return self._pipeline.fileno()

    def poll(self) -> bool:
        return self._pipeline.poll()

    def finish(self) -> list[WriteResult]:
        if self._pipeline.is_whole:  # do not touch the connection: other callers may already use it
            return self._store.results_of(self._encoded, self._pipeline.replies())
        with self._store.closing_on_error():
            replies = self._connection.receive(self._encoded.calls, self._pipeline)
        return self._store.results_of(self._encoded, replies)

    def give_up(self) -> None:
        self._store.disconnect()


def is_irreversible(writes: Sequence[Write]) -> bool:
    return any(isinstance(write, Begin) and not write.repeatable for write in writes)


def _entry_of(member: bytes, reply: object) -> tuple[int, Entry | None]:
    """Decode the reply to a read: the time and the entry."""
    scope, _, key = member.decode().partition("\x00")
    head, body = split(reply)
    return int(head[24]), to_entry(scope, key, head, body)


def _names(prefix: str, bucket: int) -> BucketNames:
    words = ("e:", "c:", "all", "open", "due", "version", "lapse")
    return BucketNames(*(f"{prefix}:{{{bucket:02x}}}:{word}".encode() for word in words))


def _place(scope: str, key: str) -> Place:
    member = f"{scope}\x00{key}".encode()
    return _bucket(member), member


def _bucket(member: bytes) -> int:
    return hashlib.sha256(member).digest()[0]


def _script(bucket: int, keys: Sequence[bytes], *arguments: Argument) -> BucketCommand:
    return bucket, encode(b"EVALSHA", _SHA, len(keys), *keys, *arguments)


def _to_cursor(place: Place) -> str:
    return f"{place[0]:02x}{base64.urlsafe_b64encode(place[1]).decode()}"


def _from_cursor(cursor: str) -> Place:
    if not cursor:
        return 0, b""
    try:
        return int(cursor[:2], 16), base64.b64decode(cursor[2:], b"-_", validate=True)
    except ValueError:
        raise InvalidOption("the cursor was not returned by a scan of this store") from None
