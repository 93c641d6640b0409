"""The wire to a Redis server or cluster: commands for buckets go out together, their answers come back in order.

The driver's connections are used as they are, without its pools, retries and cluster pipeline: that pipeline sends a
command again when its answer is late, and a write must never be sent twice. Here only those are sent again that the
server says it did not run: on a cluster what has moved to another node, and a script the server does not know.

A wire is thrown away when anything fails; its owner makes another.
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
from onceward.store.redis_errors import misconfiguration
from onceward.store.redis_pack import Command, pack
from onceward.store.redis_parcel import Parcel, Refusal

BUCKETS = 256
# A server that has not answered by then is unavailable; the callers' own patience is as long.
ANSWER_SECONDS = 5.0
CONNECT_SECONDS = 2.0
# A moving slot sends a command on once or twice, a forgotten script once; more is a cluster that cannot agree.
HOPS_MAX = 5

# What is handed on to the driver; `prefix` and `volatile` are ours.
_OPTIONS = (
    *("client_name", "db", "socket_connect_timeout", "socket_keepalive", "socket_timeout", "ssl_ca_certs"),
    *("ssl_ca_path", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"),
)
_FORM = "redis://[user:password@]host[:port][/db][?option=value], with what is special in the password percent-encoded"
_PREFIX = re.compile(r"[A-Za-z0-9._:-]{1,64}")

Call: TypeAlias = tuple[int, Command]  # the bucket whose data the command touches, and the command
Address: TypeAlias = tuple[str, int]


class Line(Protocol):
    """What we use of a driver's connection."""

    def connect(self) -> None: ...
    def send_packed_command(self, command: list[bytes]) -> None: ...
    def read_response(self) -> object: ...
    def can_read(self) -> bool: ...
    def disconnect(self) -> None: ...


class Target(NamedTuple):
    """What a store URL says."""

    nodes: tuple[Address, ...]
    options: dict[str, object]
    secure: bool
    cluster: bool
    prefix: str
    volatile_ok: bool


def parse_target(url: str) -> Target:
    """`redis://`, `rediss://` and both with `+cluster`; several cluster nodes are separated by commas."""
    try:
        parts = urlsplit(url)
        query = {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()}
        login, at, hosts = parts.netloc.rpartition("@")
        nodes = tuple(_address(host) for host in hosts.split(","))
        database = _whole(parts.path.strip("/") or "0")
        parts.netloc.encode()  # half a character is no text
    except ValueError:
        # Whatever could not be read may be a piece of a password, so that it is not shown.
        raise InvalidStoreUrl(f"a Redis store URL is {_FORM}") from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise InvalidStoreUrl(f"a Redis store URL is {_FORM}")
    scheme, _, kind = parts.scheme.partition("+")
    if scheme not in {"redis", "rediss"} or kind not in {"", "cluster"} or parts.fragment:
        raise InvalidStoreUrl(
            "a Redis store URL begins with redis://, rediss://, redis+cluster:// or rediss+cluster://"
        )
    if kind != "cluster" and len(nodes) > 1:
        raise InvalidStoreUrl("only a redis+cluster:// URL may name several hosts; they must be one cluster")
    prefix, volatile = query.pop("prefix", "onceward"), query.pop("volatile", "")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidStoreUrl("prefix= of a Redis store URL is 1 to 64 of A-Z a-z 0-9 . _ : -")
    if volatile not in {"", "ok"}:
        raise InvalidStoreUrl("volatile= of a Redis store URL can only be ok")
    unknown = query.keys() - set(_OPTIONS)
    if unknown:
        known = ", ".join(("prefix", "volatile", *_OPTIONS))
        raise InvalidStoreUrl(f"a Redis store URL has no option {min(unknown)!r}; it has {known}")
    host, port = nodes[0]
    netloc = f"{login}{at}{f'[{host}]' if ':' in host else host}:{port}"
    options = _driver_options(SplitResult(scheme, netloc, f"/{database}", urlencode(query), "").geturl())
    if kind == "cluster" and options.get("db"):
        raise InvalidStoreUrl("a Redis cluster has database 0 alone")
    target = Target(nodes, options, scheme == "rediss", kind == "cluster", prefix, volatile == "ok")
    try:
        make_line(target, nodes[0])
    except (TypeError, ValueError, RedisError):
        raise InvalidStoreUrl("the options of the Redis store URL do not fit together") from None
    return target


def _whole(text: str) -> int:
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
        raise InvalidStoreUrl(f"an option of the Redis store URL has a wrong value: {error}") from None
    for name in ("connection_class", "host", "port"):
        options.pop(name, None)
    return {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": CONNECT_SECONDS, **options}


def make_line(target: Target, address: Address) -> Line:
    host, port = address
    kind = cast("Callable[..., Line]", SSLConnection if target.secure else Connection)
    return kind(host=host, port=port, protocol=2, **target.options)


@dataclass(slots=True)
class _Errand:
    """One command on its way to its answer."""

    call: Call
    address: Address
    asking: bool = False
    load: bool = False
    reply: object = None


class Wire:
    """Open connections to one server, or to the nodes of one cluster as they are needed."""

    def __init__(self, target: Target, script: str, warn: Callable[[str], None]) -> None:
        self._target = target
        self._script = script
        self._warn = warn
        self._lines: dict[Address, Line] = {}
        self._owners: list[Address | None] = []
        self._durable = True
        self._is_alone = False

    def open(self, nodes: Sequence[Address]) -> list[Address]:
        """Reach the first of these nodes that takes a connection, and learn who owns which bucket: the nodes now."""
        info, address = self._connect_any(nodes)
        is_cluster = info.get("cluster_enabled", "1" if self._target.cluster else "0") == "1"
        if self._target.cluster and not is_cluster:
            raise InvalidStoreUrl("the store URL says +cluster, but this Redis is a single server")
        self._is_alone = info.get("cluster_enabled") == "0"
        if not is_cluster:
            self._owners = [address] * BUCKETS
            return list(nodes)
        try:
            shares = _ask(self._lines[address], pack("CLUSTER", "SLOTS"))
        except (RedisError, OSError) as error:
            raise _silence(error) from error
        if isinstance(shares, ResponseError):
            raise _refusal(shares) from shares
        slots: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in cast("list[tuple[int, int, tuple[bytes | None, int]]]", shares):
            owner = (host.decode() if host else address[0], port)
            slots.update(dict.fromkeys(range(first, last + 1), owner))
        self._owners = [slots.get(slot) for slot in _SLOTS]
        return sorted(set(slots.values())) or list(nodes)

    def is_stale(self) -> bool:
        """Whether the other side has closed a connection, or said something that nobody asked for."""
        try:
            return any(line.can_read() for line in self._lines.values())
        except (RedisError, OSError):
            return True

    def send(self, calls: Sequence[Call], *, durable: bool = False) -> list[object]:
        """The answers, in one round trip; more are made only for what was not run.

        `durable` refuses, before anything is sent, a server that may forget.
        """
        errands = [_Errand(call, self._owner(call[0])) for call in calls]
        return self._answers(errands, errands, durable=durable)

    def can_depart(self, *, durable: bool) -> bool:
        """Whether all goes through one plain connection, to a server that keeps what has to be kept."""
        return self._is_alone and len(self._lines) == 1 and not self._target.secure and (self._durable or not durable)

    def depart(self, calls: Sequence[Call]) -> Parcel | None:
        """As `send`, up to the wait. None when nothing could be sent."""
        (line,) = self._lines.values()
        plug: socket.socket | None = getattr(line, "_sock", None)
        seconds = plug.gettimeout() if plug is not None else None
        if plug is None or not seconds:
            return None
        try:
            return Parcel(plug, [command for _, command in calls], seconds)
        except OSError:
            return None

    def arrived(self, calls: Sequence[Call], parcel: Parcel) -> list[object]:
        """The answers to what departed. What the server did not run is sent again."""
        try:
            replies = parcel.replies()
        except OSError as error:
            raise _silence(error) from error
        if not parcel.stuck:
            return list(replies)
        errands = [_Errand(call, self._owner(call[0])) for call in calls]
        for errand, reply in zip(errands, replies, strict=True):
            errand.reply = _error(reply) if isinstance(reply, Refusal) else reply
        return self._answers(errands, [errand for errand in errands if self._goes_on(errand)])

    def _answers(self, errands: list[_Errand], waiting: list[_Errand], *, durable: bool = False) -> list[object]:
        try:
            for _ in range(HOPS_MAX):
                if not waiting:
                    break
                self._trip(waiting, durable=durable)
                waiting = [errand for errand in waiting if self._goes_on(errand)]
        except (RedisError, OSError) as error:
            raise _silence(error) from error
        for errand in errands:
            if isinstance(errand.reply, ResponseError):
                raise _refusal(errand.reply) from errand.reply
        return [errand.reply for errand in errands]

    def close(self) -> None:
        for line in self._lines.values():
            line.disconnect()
        self._lines = {}

    def _trip(self, errands: list[_Errand], *, durable: bool) -> None:
        """Everything is sent before anything is read."""
        groups: dict[Address, list[_Errand]] = {}
        for errand in errands:
            groups.setdefault(errand.address, []).append(errand)
        for address in groups:
            if address not in self._lines:
                self._connect(address)
        if durable and not self._durable:
            raise NotDurable(
                "this Redis may forget acknowledged writes (it needs appendonly yes and noeviction), so it cannot guard"
                " an effect that must not be repeated; add ?volatile=ok to its URL to accept that"
            )
        parcels = [(self._lines[address], self._steps(group)) for address, group in groups.items()]
        # In one piece: Redis syncs its log once for what it reads at once.
        packed = [b"".join([command for command, _ in steps]) for _, steps in parcels]
        for (line, _), data in zip(parcels, packed, strict=True):
            line.send_packed_command([data])
        for line, steps in parcels:
            for _, whose in steps:
                reply = _read(line)
                if whose is not None:
                    whose.reply = reply

    def _steps(self, group: list[_Errand]) -> list[tuple[Command, _Errand | None]]:
        steps: list[tuple[Command, _Errand | None]] = []
        if any(errand.load for errand in group):
            steps.append((pack("SCRIPT", "LOAD", self._script), None))
        for errand in group:
            if errand.asking:
                steps.append((pack("ASKING"), None))
            steps.append((errand.call[1], errand))
        return steps

    def _goes_on(self, errand: _Errand) -> bool:
        """Whether the server said that it did not run this, and where or how it will run."""
        reply = errand.reply
        if isinstance(reply, NoScriptError):
            errand.load = True
            return True
        if not isinstance(reply, AskError | MovedError):
            return False
        # A node that does not know its own name leaves it out: it is where the answer came from.
        errand.address = (reply.host or errand.address[0], reply.port)
        errand.load = False
        errand.asking = not isinstance(reply, MovedError)
        if not errand.asking:
            self._owners[errand.call[0]] = errand.address
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
                # One that is slow to answer has used up the caller's patience; another is tried next time.
                problem = error
                break
        raise _silence(problem or ConnectionRefused("it has no nodes")) from problem

    def _connect(self, address: Address) -> dict[str, str]:
        """Open a line and look at what kind of server answers."""
        line = make_line(self._target, address)
        try:
            line.connect()
            info = _info(line)
        except BaseException:
            line.disconnect()
            raise
        self._lines[address] = line
        if info.get("aof_enabled") != "1" or info.get("maxmemory_policy") != "noeviction":
            self._durable = self._target.volatile_ok
            self._warn(f"{address[0]}:{address[1]}")
        return info


def _info(line: Line) -> dict[str, str]:
    """What the server says of itself: nothing, where it does not let us look."""
    reply = _ask(line, pack("INFO"))
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
    info = {name: value for name, _, value in (row.partition(":") for row in text.splitlines())}
    if info.get("loading") == "1":
        # For as long as it reads its log, a durable server says that it keeps none.
        raise BusyLoadingError("the server still loads its data")
    return info


def _ask(line: Line, command: Command) -> object:
    line.send_packed_command([command])
    return _read(line)


def _read(line: Line) -> object:
    try:
        return line.read_response()
    except ResponseError as error:
        return error


def _error(refusal: Refusal) -> ResponseError:
    return NoScriptError(refusal) if refusal.startswith("NOSCRIPT") else ResponseError(refusal)


def _silence(error: Exception) -> StoreUnavailable:
    wrong = misconfiguration(error)
    if wrong is not None:
        return StoreMisconfigured(wrong)
    return StoreUnavailable(f"the Redis store cannot be reached or did not answer: {type(error).__name__}: {error}")


def _refusal(error: ResponseError) -> StoreUnavailable | BatchFailed:
    """An error that the server answers with. None of them leaves a write half done."""
    wrong = misconfiguration(error)
    if wrong is not None:
        return StoreMisconfigured(wrong)
    if "WRONGTYPE" in str(error):
        # Neighbours may have been applied; sent again, they know themselves by their write ids.
        return BatchFailed(f"the Redis store holds something else under this name: {error}")
    return StoreUnavailable(f"the Redis store refused: {type(error).__name__}: {error}")


# A cluster's slot is the CRC of the hash tag, which is the bucket.
_SLOTS = [crc_hqx(b"%02x" % bucket, 0) % 16_384 for bucket in range(BUCKETS)]
