"""The Redis store: one script decides each write where its entry is, one pipeline carries a batch.

`redis.lua` has the claim machine and the layout. This module turns writes into its arguments and answers into
entries; `redis_wire.py` carries them. Each write is atomic by itself and has the time of its own call: Redis runs a
batch as many scripts, so "once per batch" of rule 5 is once per write here.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from typing import TypeAlias, cast

from onceward.core.claim import UNFINISHED, Answer, Append, Begin, Entry, Move, Ref, Status, Write
from onceward.errors import InvalidOption, NotDurable, StoreClosed
from onceward.store import PAGE_MAX, BatchFailed, Clock, Page, Reading
from onceward.store.flight import Flight
from onceward.store.held import Held
from onceward.store.redis_pack import Argument, Names, bucket_of, pack, pack_begin, pack_move
from onceward.store.redis_parcel import Parcel
from onceward.store.redis_rows import split, to_answer, to_entry
from onceward.store.redis_schema import check_schema
from onceward.store.redis_wire import BUCKETS, Call, Wire, parse_target

# A scan that finds little among many stops after so many pages and hands out its cursor: other callers wait.
SCAN_STEPS_MAX = 20

_SCRIPT = resources.files("onceward.store").joinpath("redis.lua").read_text("utf-8")
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest().encode()
_log = logging.getLogger("onceward.store.redis")

Place: TypeAlias = tuple[int, bytes]  # a bucket, and a member of its indexes: scope NUL key


class RedisStore:
    """A ledger in Redis 6.2 or newer, or in a cluster of them; as durable as the server is (see `?volatile=ok`)."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._target = parse_target(url)
        self._names = [_names(self._target.prefix, bucket) for bucket in range(BUCKETS)]
        self._buckets = [bucket_of(names, _SHA) for names in self._names]
        self._clock = clock
        self._nodes = list(self._target.nodes)
        self._wire: Wire | None = None
        self._held = Held()
        self._closed = False
        self._warned = False
        self._indexed = False

    def commit(self, writes: Sequence[Write]) -> list[Answer]:
        packed = self.pack()
        packed.add(writes)
        try:
            replies = self._send(packed.calls, durable=is_irreversible(writes))
        except NotDurable:
            if len(writes) == 1:
                raise
            # Nothing was sent; the batcher halves the batch until the one that is refused stands alone.
            raise BatchFailed("a write of this batch needs a Redis that does not forget") from None
        return self.told(packed, replies)

    def pack(self) -> Packed:
        return Packed(self)

    def depart(self, packed: Packed) -> Flight | None:
        wire, durable = self._wire, is_irreversible(packed.writes)
        if not packed.writes or wire is None or not wire.can_depart(durable=durable) or wire.is_stale():
            return None
        with self.hanging_up():
            parcel = wire.depart(packed.calls)
            return None if parcel is None else _Flight(self, wire, packed, parcel)

    def told(self, packed: Packed, replies: Sequence[object]) -> list[Answer]:
        answers = [
            to_answer(write, reply, held)
            for write, reply, held in zip(packed.writes, replies, packed.known, strict=True)
        ]
        self._held.note([(write.scope, write.key) for write in packed.writes], answers)
        return answers

    def read(self, refs: Sequence[Ref]) -> Reading:
        # An answer has a time even when nothing was asked for; no entry has an empty name.
        found = self._read([_place(*ref) for ref in refs] or [(0, b"")], "")
        # The earliest time: what was read a moment later was still so then, or newer.
        return Reading(min(now for now, _ in found), tuple(entry for _, entry in found)[: len(refs)])

    def scan(self, scope: str | None, status: Status | None, after: str, limit: int) -> Page:
        at = _from_cursor(after)
        found: list[tuple[Place, Entry]] = []
        for _ in range(SCAN_STEPS_MAX):
            # Without a filter, one more than the page holds tells whether there are more.
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
            # The hash spreads entries evenly, so that an even share of each bucket is close to the whole in one go.
            share = -(-(limit - purged) // BUCKETS)
            calls = [_script(bucket, [names.due], "due", now, b"", share) for bucket, names in enumerate(self._names)]
            doomed = [
                _script(bucket, [names.entry + member, names.chunks + member, *names[2:5]], "purge", now, member)
                for bucket, (names, members) in enumerate(zip(self._names, self._send(calls), strict=True))
                for member in cast("list[bytes]", members)
            ]
            if not doomed:
                break
            purged += sum(cast("list[int]", self._send(doomed[: limit - purged])))
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
        return sorted(self._checked(places), key=lambda entry: entry.lease_until)[:limit]

    def _index_once(self) -> None:
        """Put claims in the index that a process of schema 1 left out; once in the life of this store."""
        if not self._indexed:
            at = _from_cursor("")
            while places := self._places(None, Status.IN_PROGRESS, at, PAGE_MAX):
                self._checked(places)
                at = places[-1]
            self._indexed = True

    def _checked(self, places: Sequence[Place]) -> list[Entry]:
        """Those whose lease has lapsed and which may not be repeated; all of them are put right in the index."""
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

    def abandon(self) -> None:
        # The driver does not touch a connection that another process opened, not even when it is collected.
        self._wire = None
        self._held.clear()

    def close(self) -> None:
        self._closed = True
        self.hang_up()

    def _now(self) -> str:
        """The pinned time, or nothing for the server's own."""
        return "" if self._clock is None else str(self._clock())

    def _send(self, calls: Sequence[Call], *, durable: bool = False) -> list[object]:
        if self._wire is not None and self._wire.is_stale():
            self.hang_up()
        with self.hanging_up():
            return (self._wire or self._open()).send(calls, durable=durable)

    @contextmanager
    def hanging_up(self) -> Iterator[None]:
        """When anything fails."""
        try:
            yield
        except NotDurable:
            raise
        except BaseException:
            # Answers may be left unread, also when an interrupt ends the call: nobody may take them for his own.
            self.hang_up()
            # Should the first of a cluster's nodes be the trouble, the next one is asked next time.
            self._nodes = [*self._nodes[1:], self._nodes[0]]
            raise

    def _open(self) -> Wire:
        if self._closed:
            raise StoreClosed("the Redis store is closed")
        wire = Wire(self._target, _SCRIPT, self._warn)
        try:
            self._nodes = wire.open(self._nodes)
            check_schema(wire, self._target.prefix)
        except BaseException:
            wire.close()
            raise
        self._wire = wire
        return wire

    def hang_up(self) -> None:
        self._held.clear()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _warn(self, server: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "the Redis at %s may forget acknowledged writes: set appendonly yes and maxmemory-policy noeviction",
                server,
            )

    def packed(self, writes: Sequence[Write]) -> Iterator[tuple[Call, Entry | None]]:
        """The commands, and the entries that they leave out of their answers."""
        now = self._now()
        for write in writes:
            known = self._held.known(write)
            yield self._write(write, now, "" if known is None else known.write_id), known

    def _write(self, write: Write, now: str, known: str) -> Call:
        member = f"{write.scope}\x00{write.key}"
        number = _bucket(member.encode())
        match write:
            case Begin():
                return number, pack_begin(self._buckets[number], member, now, write)
            case Move():
                return number, pack_move(self._buckets[number], member, now, write, known)
            case Append():
                names, place = self._names[number], member.encode()
                keys = [names.entry + place, names.chunks + place]
                written = (write.write_id, write.version, write.seq)
                return _script(number, keys, "append", now, place, *written, *write.chunks)

    def _read(self, places: Sequence[Place], status: str) -> list[tuple[int, Entry | None]]:
        now = self._now()
        calls = [_script(b, [self._names[b].entry + member], "read", now, member, status) for b, member in places]
        found: list[tuple[int, Entry | None]] = []
        for (_, member), reply in zip(places, self._send(calls), strict=True):
            found.append((0, None) if reply is None else _entry_of(member, reply))
        return found

    def _places(self, scope: str | None, status: Status | None, after: Place, wanted: int) -> list[Place]:
        """The next members of the right index, in order; fewer than wanted only where many vanish, none at the end."""
        index = 3 if status in UNFINISHED else 2
        first, member = after
        low, high = (b"-", b"+") if scope is None else (b"[%s\x00" % scope.encode(), b"(%s\x01" % scope.encode())
        while first < BUCKETS:
            ranges = [(bucket, (self._names[bucket][index], low, high)) for bucket in range(first, BUCKETS)]
            if member and member >= low[1:]:
                ranges[0] = (first, (self._names[first][index], b"(" + member, high))
            counts = cast("list[int]", self._send([(bucket, pack("ZLEXCOUNT", *span)) for bucket, span in ranges]))
            calls: list[Call] = []
            total = 0
            for (bucket, span), count in zip(ranges, counts, strict=True):
                if count and total < wanted:
                    calls.append((bucket, pack("ZRANGEBYLEX", *span, "LIMIT", 0, wanted)))
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
            # All that was counted has been purged since; go on behind it.
            first, member = calls[-1][0] + 1, b""
        return []


class Packed:
    """Writes as commands, and the entries that were known of when they were packed."""

    __slots__ = ("_store", "calls", "known", "writes")

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.writes: list[Write] = []
        self.calls: list[Call] = []
        self.known: list[Entry | None] = []

    def add(self, writes: Sequence[Write]) -> None:
        try:
            for call, known in self._store.packed(writes):
                self.calls.append(call)
                self.known.append(known)
        except UnicodeEncodeError as error:
            raise BatchFailed(f"a write of this batch has a lone surrogate, which is not text: {error}") from None
        self.writes += writes

    def depart(self) -> Flight | None:
        return self._store.depart(self)


class _Flight:
    """A batch that the server works on; see `store/flight.py`."""

    __slots__ = ("_packed", "_parcel", "_store", "_wire")

    def __init__(self, store: RedisStore, wire: Wire, packed: Packed, parcel: Parcel) -> None:
        self._store = store
        self._wire = wire
        self._packed = packed
        self._parcel = parcel

    @property
    def grounded(self) -> bool:
        return self._parcel.stuck

    @property
    def received(self) -> bool:
        return self._parcel.is_whole

    def fileno(self) -> int:
        return self._parcel.fileno()

    def poll(self) -> bool:
        return self._parcel.poll()

    def finish(self) -> list[Answer]:
        if self._parcel.is_whole:  # and others may be speaking to the server now
            return self._store.told(self._packed, self._parcel.replies())
        with self._store.hanging_up():
            replies = self._wire.arrived(self._packed.calls, self._parcel)
        return self._store.told(self._packed, replies)

    def give_up(self) -> None:
        self._store.hang_up()


def is_irreversible(writes: Sequence[Write]) -> bool:
    return any(isinstance(write, Begin) and not write.repeatable for write in writes)


def _entry_of(member: bytes, reply: object) -> tuple[int, Entry | None]:
    """The time and the entry that a read answered."""
    scope, _, key = member.decode().partition("\x00")
    head, body = split(reply)
    return int(head[20]), to_entry(scope, key, head, body)


def _names(prefix: str, bucket: int) -> Names:
    words = ("e:", "c:", "all", "open", "due", "version", "lapse")
    return Names(*(f"{prefix}:{{{bucket:02x}}}:{word}".encode() for word in words))


def _place(scope: str, key: str) -> Place:
    member = f"{scope}\x00{key}".encode()
    return _bucket(member), member


def _bucket(member: bytes) -> int:
    return hashlib.sha256(member).digest()[0]


def _script(bucket: int, keys: Sequence[bytes], *arguments: Argument) -> Call:
    return bucket, pack(b"EVALSHA", _SHA, len(keys), *keys, *arguments)


def _to_cursor(place: Place) -> str:
    return f"{place[0]:02x}{base64.urlsafe_b64encode(place[1]).decode()}"


def _from_cursor(cursor: str) -> Place:
    if not cursor:
        return 0, b""
    try:
        return int(cursor[:2], 16), base64.b64decode(cursor[2:], b"-_", validate=True)
    except ValueError:
        raise InvalidOption("this is not a cursor that a scan of this store gave out") from None
