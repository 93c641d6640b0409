"""Connections to a Redis server or cluster: commands for buckets are sent together, and their replies arrive in order.

The driver's connections are used without its pools, retries and cluster pipeline. That pipeline sends a command again
if its reply is late, and a write must never be sent twice. Here a command is sent again only if the server replied that
it did not run it: because the slot has moved to another node of the cluster, or because it does not know the script.

A `RedisConnection` is discarded when anything fails, and its owner creates another.
"""

from __future__ import annotations

import re
import socket
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, cast
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

from redis.connection import Connection, SSLConnection, parse_url
from redis.exceptions import AskError, BusyLoadingError, MovedError, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as ConnectionRefused

from onceward.errors import InvalidStoreUrl, NotDurable, StoreMisconfigured, StoreUnavailable
from onceward.store import BatchFailed
from onceward.store.redis import REDIS_SCHEMES
from onceward.store.redis.errors import misconfiguration
from onceward.store.redis.resp import Command, ErrorReply, RedisPipeline, encode

BUCKETS = 256
# A server that does not reply within this time is unavailable. The callers' own timeout is as long.
REPLY_SECONDS = 5.0
CONNECT_SECONDS = 2.0
# A moving slot redirects a command once or twice, and a missing script costs one retry. More redirects mean that the
# nodes of a cluster disagree.
HOPS_MAX = 5

# The options that are passed to the driver; `prefix` and `volatile` are the store's own.
_OPTIONS = (
    *("client_name", "db", "socket_connect_timeout", "socket_keepalive", "socket_timeout", "ssl_ca_certs"),
    *("ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"),
)
_FORM = "redis://[user:password@]host[:port][/db][?option=value], with special characters percent-encoded"
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")

BucketCommand: TypeAlias = tuple[int, Command]  # the bucket whose data the command touches, and the command
Address: TypeAlias = tuple[str, int]


class DriverConnection(Protocol):
    """The methods of a driver's connection that are used here."""

    def connect(self) -> None: ...
    def send_packed_command(self, command: list[bytes]) -> None: ...
    def read_response(self) -> object: ...
    def can_read(self) -> bool: ...
    def disconnect(self) -> None: ...


class RedisTarget(NamedTuple):
    """The parts of a store URL."""

    nodes: tuple[Address, ...]
    options: dict[str, object]
    secure: bool
    cluster: bool
    prefix: str
    volatile_ok: bool


def parse_target(url: str) -> RedisTarget:
    """Parse a store URL with one of `REDIS_SCHEMES`; with `+cluster`, it may name several hosts between commas."""
    try:
        parts = urlsplit(url)
        query = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
        login, at, hosts = parts.netloc.rpartition("@")
        nodes = tuple(_address(host) for host in hosts.split(","))
        database = _whole_number(parts.path.strip("/") or "0")
        parts.netloc.encode()  # raises for a lone surrogate
    except ValueError:
        # The part that could not be parsed may belong to a password, so it is not shown.
        raise InvalidStoreUrl(f"the Redis store URL is malformed; write {_FORM}") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise InvalidStoreUrl(f"the Redis store URL is malformed; write {_FORM}")
    scheme, _, kind = parts.scheme.replace("valkey", "redis").partition("+")
    if parts.scheme not in REDIS_SCHEMES or parts.fragment:
        raise InvalidStoreUrl(
            "a Redis store URL must begin with redis://, rediss://, redis+cluster:// or rediss+cluster://; for Valkey,"
            " with valkey://, valkeys://, valkey+cluster:// or valkeys+cluster://"
        )
    if kind != "cluster" and len(nodes) > 1:
        raise InvalidStoreUrl("only a redis+cluster:// URL may name several hosts; they must be one cluster")
    prefix, volatile = query.pop("prefix", "onceward"), query.pop("volatile", "")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidStoreUrl("prefix= in a Redis store URL must be 1 to 64 characters of A-Z a-z 0-9 . _ : -")
    if volatile not in {"", "ok"}:
        raise InvalidStoreUrl("volatile= in a Redis store URL must be ok")
    unknown = query.keys() - set(_OPTIONS)
    if unknown:
        known = ", ".join(("prefix", "volatile", *_OPTIONS))
        raise InvalidStoreUrl(f"unknown option {min(unknown)!r} in the Redis store URL; the options are {known}")
    host, port = nodes[0]
    netloc = f"{login}{at}{f'[{host}]' if ':' in host else host}:{port}"
    options = _driver_options(SplitResult(scheme, netloc, f"/{database}", urlencode(query), "").geturl())
    if kind == "cluster" and options.get("db"):
        raise InvalidStoreUrl("a Redis cluster has only database 0")
    target = RedisTarget(nodes, options, scheme == "rediss", kind == "cluster", prefix, volatile == "ok")
    try:
        make_driver_connection(target, nodes[0])
    except (TypeError, ValueError, RedisError):
        raise InvalidStoreUrl("the options of the Redis store URL cannot be combined") from None
    return target


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("not a number")
    return int(text)


def _address(host: str) -> Address:
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError("no host")
    return parts.hostname, parts.port or 6379


def _driver_options(url: str) -> dict[str, object]:
    try:
        options = cast("dict[str, object]", parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise InvalidStoreUrl(f"an option of the Redis store URL has an invalid value: {error}") from None
    for name in ("connection_class", "host", "port"):
        options.pop(name, None)
    return {"socket_timeout": REPLY_SECONDS, "socket_connect_timeout": CONNECT_SECONDS, **options}


def make_driver_connection(target: RedisTarget, address: Address) -> DriverConnection:
    host, port = address
    kind = cast("Callable[..., DriverConnection]", SSLConnection if target.secure else Connection)
    return kind(host=host, port=port, protocol=2, **target.options)


@dataclass(slots=True)
class _Request:
    """One command that waits for its reply."""

    call: BucketCommand
    address: Address
    asking: bool = False
    load: bool = False
    reply: object = None


class RedisConnection:
    """Open connections to one server, or to the nodes of one cluster as needed."""

    def __init__(self, target: RedisTarget, script: str, warn: Callable[[str], None]) -> None:
        self._target = target
        self._script = script
        self._warn = warn
        self._connections: dict[Address, DriverConnection] = {}
        self._owners: list[Address | None] = []
        self._durable = True
        self._is_single_server = False

    def open(self, nodes: Sequence[Address]) -> list[Address]:
        """Connect to the first available node, find out which node owns which bucket, and return the current nodes."""
        info, address = self._connect_any(nodes)
        is_cluster = info.get("cluster_enabled", "1" if self._target.cluster else "0") == "1"
        if self._target.cluster and not is_cluster:
            raise InvalidStoreUrl("the store URL says +cluster, but this Redis is a single server")
        self._is_single_server = info.get("cluster_enabled") == "0"
        if not is_cluster:
            self._owners = [address] * BUCKETS
            return list(nodes)
        try:
            slot_ranges = _ask(self._connections[address], encode("CLUSTER", "SLOTS"))
        except (RedisError, OSError) as error:
            raise _unreachable(error) from error
        if isinstance(slot_ranges, ResponseError):
            raise _refused_error(slot_ranges) from slot_ranges
        slots: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in cast("list[tuple[int, int, tuple[bytes | None, int]]]", slot_ranges):
            owner = (host.decode() if host else address[0], port)
            slots.update(dict.fromkeys(range(first, last + 1), owner))
        self._owners = [slots.get(slot) for slot in _SLOTS]
        return sorted(set(slots.values())) or list(nodes)

    def is_stale(self) -> bool:
        """Return whether the server has closed a connection, or sent something unexpected."""
        try:
            return any(driver.can_read() for driver in self._connections.values())
        except (RedisError, OSError):
            return True

    def send(self, calls: Sequence[BucketCommand], *, durable: bool = False) -> list[object]:
        """Send commands and return their replies, in one round trip. Only commands that were not run are sent again.

        With `durable`, a server that may lose writes is refused before anything is sent.
        """
        requests = [_Request(call, self._owner(call[0])) for call in calls]
        return self._replies(requests, requests, durable=durable)

    def can_pipeline(self, *, durable: bool) -> bool:
        """Return whether a batch can be sent without waiting: to one server, without TLS, and durable if needed."""
        return (
            self._is_single_server
            and len(self._connections) == 1
            and not self._target.secure
            and (self._durable or not durable)
        )

    def send_nowait(self, calls: Sequence[BucketCommand]) -> RedisPipeline | None:
        """Send commands without waiting for their replies. None if nothing could be sent."""
        (driver,) = self._connections.values()
        sock: socket.socket | None = getattr(driver, "_sock", None)
        seconds = sock.gettimeout() if sock is not None else None
        if sock is None or not seconds:
            return None
        try:
            return RedisPipeline(sock, [command for _, command in calls], seconds)
        except OSError:
            return None

    def receive(self, calls: Sequence[BucketCommand], pipeline: RedisPipeline) -> list[object]:
        """Return the replies of a pipeline. Commands that the server did not run are sent again."""
        try:
            replies = pipeline.replies()
        except OSError as error:
            raise _unreachable(error) from error
        if not pipeline.must_block:
            return list(replies)
        requests = [_Request(call, self._owner(call[0])) for call in calls]
        for request, reply in zip(requests, replies, strict=True):
            request.reply = _error(reply) if isinstance(reply, ErrorReply) else reply
        return self._replies(requests, [request for request in requests if self._must_resend(request)])

    def _replies(self, requests: list[_Request], waiting: list[_Request], *, durable: bool = False) -> list[object]:
        try:
            for _ in range(HOPS_MAX):
                if not waiting:
                    break
                self._round_trip(waiting, durable=durable)
                waiting = [request for request in waiting if self._must_resend(request)]
        except (RedisError, OSError) as error:
            raise _unreachable(error) from error
        for request in requests:
            if isinstance(request.reply, ResponseError):
                raise _refused_error(request.reply) from request.reply
        return [request.reply for request in requests]

    def close(self) -> None:
        for driver in self._connections.values():
            driver.disconnect()
        self._connections = {}

    def _round_trip(self, requests: list[_Request], *, durable: bool) -> None:
        """Send all commands, then read all replies."""
        groups: dict[Address, list[_Request]] = {}
        for request in requests:
            groups.setdefault(request.address, []).append(request)
        for address in groups:
            if address not in self._connections:
                self._connect(address)
        if durable and not self._durable:
            raise NotDurable(
                "this Redis may lose acknowledged writes (it needs appendonly yes and maxmemory-policy noeviction), so"
                " it cannot guard an effect that must not be repeated; add ?volatile=ok to its URL to accept that"
            )
        batches = [(self._connections[address], self._steps(group)) for address, group in groups.items()]
        # Send each group in one piece: Redis syncs its log once for everything that it reads at once.
        encoded = [b"".join([command for command, _ in steps]) for _, steps in batches]
        for (driver, _), data in zip(batches, encoded, strict=True):
            driver.send_packed_command([data])
        for driver, steps in batches:
            for _, request_or_none in steps:
                reply = _read(driver)
                if request_or_none is not None:
                    request_or_none.reply = reply

    def _steps(self, group: list[_Request]) -> list[tuple[Command, _Request | None]]:
        steps: list[tuple[Command, _Request | None]] = []
        if any(request.load for request in group):
            steps.append((encode("SCRIPT", "LOAD", self._script), None))
        for request in group:
            if request.asking:
                steps.append((encode("ASKING"), None))
            steps.append((request.call[1], request))
        return steps

    def _must_resend(self, request: _Request) -> bool:
        """Return whether the server did not run the command; if so, note where and how it has to be sent again."""
        reply = request.reply
        if isinstance(reply, NoScriptError):
            request.load = True
            return True
        if not isinstance(reply, AskError | MovedError):
            return False
        # A node that does not know its own host name leaves it out. It then means the host that replied.
        request.address = (reply.host or request.address[0], reply.port)
        request.load = False
        request.asking = not isinstance(reply, MovedError)
        if not request.asking:
            self._owners[request.call[0]] = request.address
        return True

    def _owner(self, bucket: int) -> Address:
        owner = self._owners[bucket]
        if owner is None:
            raise StoreUnavailable("no node of the Redis cluster serves the slot of this key")
        return owner

    def _connect_any(self, nodes: Sequence[Address]) -> tuple[dict[str, str], Address]:
        problem: Exception | None = None
        for address in nodes:
            try:
                return self._connect(address), address
            except ConnectionRefused as error:
                problem = error
            except (RedisError, OSError) as error:
                # A slow node has used up the caller's time. The next call tries another one.
                problem = error
                break
        raise _unreachable(problem or ConnectionRefused("the cluster has no nodes")) from problem

    def _connect(self, address: Address) -> dict[str, str]:
        """Open a connection and read what kind of server it is."""
        driver = make_driver_connection(self._target, address)
        try:
            driver.connect()
            info = _info(driver)
        except BaseException:
            driver.disconnect()
            raise
        self._connections[address] = driver
        if info.get("aof_enabled") != "1" or info.get("maxmemory_policy") != "noeviction":
            self._durable = self._target.volatile_ok
            self._warn(f"{address[0]}:{address[1]}")
        return info


def server_info(url: str) -> dict[str, str]:
    """Return the INFO of a store's server (in a cluster: of its first node) without changing anything.

    The setting `appendfsync` is added if this user may read it.
    """
    target = parse_target(url)
    try:
        driver = make_driver_connection(target, target.nodes[0])
        try:
            driver.connect()
            match _ask(driver, encode("CONFIG", "GET", "appendfsync")):
                case [bytes(name), bytes(value)]:
                    return {**_info(driver), name.decode(): value.decode()}
            return _info(driver)
        finally:
            driver.disconnect()
    except (RedisError, OSError) as error:
        raise _unreachable(error) from None


def _info(driver: DriverConnection) -> dict[str, str]:
    """Return the server's INFO, which is empty if this user may not read it."""
    reply = _ask(driver, encode("INFO"))
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
    info = {name: value for name, _, value in (row.partition(":") for row in text.splitlines())}
    if info.get("loading") == "1":
        # While a durable server loads its append-only file, it reports that it has none.
        raise BusyLoadingError("the server is still loading its data")
    return info


def _ask(driver: DriverConnection, command: Command) -> object:
    driver.send_packed_command([command])
    return _read(driver)


def _read(driver: DriverConnection) -> object:
    try:
        return driver.read_response()
    except ResponseError as error:
        return error


def _error(refusal: ErrorReply) -> ResponseError:
    return NoScriptError(refusal) if refusal.startswith("NOSCRIPT") else ResponseError(refusal)


def _unreachable(error: Exception) -> StoreUnavailable:
    wrong = misconfiguration(error)
    if wrong is not None:
        return StoreMisconfigured(wrong)
    return StoreUnavailable(f"the Redis store cannot be reached or did not respond: {type(error).__name__}: {error}")


def _refused_error(error: ResponseError) -> StoreUnavailable | BatchFailed:
    """Translate an error reply. None of them leaves a write partly applied."""
    wrong = misconfiguration(error)
    if wrong is not None:
        return StoreMisconfigured(wrong)
    if "WRONGTYPE" in str(error):
        # Other writes of the batch may have been applied. They are sent again, and their write ids show that.
        return BatchFailed(f"a Redis key of the store has a value of another type: {error}")
    return StoreUnavailable(f"the Redis server returned an error: {type(error).__name__}: {error}")


# The slot in a cluster is the CRC of the hash tag, which is the bucket.
_SLOTS = [crc_hqx(b"%02x" % bucket, 0) % 16_384 for bucket in range(BUCKETS)]
