"""RESP, the protocol of Redis: encode commands, and decode replies as they arrive, so that an event loop never waits.

Each call of the ledger sends two commands, begin and settle. They are encoded in one step from a template for each
bucket, because encoding them word by word took a tenth of the time of a keyed request. A pipeline sends only scripts
that write. They reply with a string or an error.
"""

from __future__ import annotations

import functools
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from onceward.core.claim import Begin, Move

# The most bytes of one read.
_READ_BYTES = 256 * 1024
_STRING, _ERROR = b"$-"


class ErrorReply(str):
    """An error reply of the server."""

    __slots__ = ()


class RedisPipeline:
    """Commands that were sent on a socket. The socket has a timeout, so its descriptor is non-blocking."""

    __slots__ = ("_at", "_data", "_deadline", "_expected", "_failure", "_is_refused", "_received", "_rest", "_socket")

    def __init__(self, driver: socket.socket, commands: Iterable[bytes], seconds: float) -> None:
        """Send the commands. An `OSError` means that nothing was sent."""
        pieces = list(commands)
        data = b"".join(pieces)
        sent = os.write(driver.fileno(), data)
        self._rest = data[sent:] if sent < len(data) else b""
        self._socket = driver
        self._deadline = time.monotonic() + seconds
        self._expected = len(pieces)
        self._data = b""
        self._at = 0
        self._received: list[bytes | ErrorReply] = []
        self._is_refused = False
        self._failure: OSError | None = None

    @property
    def must_block(self) -> bool:
        """True if a thread that can wait has to continue: the commands were only partly sent, or one was refused."""
        return self._is_refused or bool(self._rest)

    @property
    def is_whole(self) -> bool:
        """True if all replies have arrived, and none is an error."""
        return self._failure is None and not self.must_block and len(self._received) == self._expected

    @property
    def _over(self) -> bool:
        return self._failure is not None or len(self._received) == self._expected

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self) -> bool:
        """Read what has arrived; return whether that is all, or nothing more will arrive."""
        try:
            self._parse(os.read(self._socket.fileno(), _READ_BYTES))
        except BlockingIOError:
            return False
        except OSError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001  # raised by `replies`
            self._failure = ConnectionAbortedError(f"the server sent a malformed reply: {error}")
        return self._over

    def _parse(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("the server closed the connection")
        if self._at < len(self._data):
            data = self._data[self._at :] + data
        at, size = 0, len(data)
        while len(self._received) < self._expected:
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            kind, start = data[at], end + 2
            if kind == _STRING:
                length = int(data[at + 1 : end])
                end = start + length
                if length < 0:
                    raise ConnectionAbortedError("the server sent a null reply")
                if end + 2 > size:
                    break
                self._received.append(data[start:end])
                at = end + 2
            elif kind == _ERROR:
                self._is_refused = True
                self._received.append(ErrorReply(data[at + 1 : end].decode("utf-8", "replace")))
                at = start
            else:
                raise ConnectionAbortedError("the server sent a reply of an unexpected type")
        if at < size and len(self._received) == self._expected:
            raise ConnectionAbortedError("the server sent more replies than expected")
        self._data, self._at = data, at

    def replies(self) -> list[bytes | ErrorReply]:
        """Return all replies, waiting for those that have not arrived."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._socket.sendall(rest)
        if not self._over:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                while not self._over:
                    if not selector.select(self._deadline - time.monotonic()):
                        raise TimeoutError("the server does not respond")
                    self.poll()
        if self._failure is not None:
            raise self._failure
        return self._received


Argument: TypeAlias = bytes | str | int
Command: TypeAlias = bytes

_BEGIN_WORDS = 3 + 7 + 13
_MOVE_WORDS = 3 + 4 + 10


class BucketNames(NamedTuple):
    """The key names of one bucket."""

    entry: bytes  # a prefix; the member follows
    chunks: bytes  # a prefix; the member follows
    all: bytes
    open: bytes
    due: bytes
    version: bytes
    lapse: bytes


class Bucket(NamedTuple):
    """The encoded parts that all commands for one bucket share."""

    entry: str
    chunks: str
    begin_head: str
    begin_keys: str  # follows the names of the entry and of its chunks
    move_head: str  # follows the number of words
    move_keys: str  # follows the name of the entry


def bucket_of(names: BucketNames, script: bytes) -> Bucket:
    def words(*some: bytes) -> str:
        return "".join(f"${len(word)}\r\n{word.decode()}\r\n" for word in some)

    return Bucket(
        entry=names.entry.decode(),
        chunks=names.chunks.decode(),
        begin_head=f"*{_BEGIN_WORDS}\r\n{words(b'EVALSHA', script, b'7')}",
        begin_keys=words(*names[2:], b"begin"),
        move_head=words(b"EVALSHA", script, b"4"),
        move_keys=words(names.open, names.due, names.lapse),
    )


def encode_begin(bucket: Bucket, member: str, now: str, write: Begin, size: Callable[[str], int] = len) -> Command:
    entry, chunks = bucket.entry + member, bucket.chunks + member
    write_id, fingerprint, holder, user_id, endpoint = (
        write.write_id, write.fingerprint, write.holder, write.user_id, write.endpoint
    )  # fmt: skip
    lease, retain, dead, basis = str(write.lease), str(write.retain), str(write.dead), str(write.key_basis)
    text = (
        f"{bucket.begin_head}${size(entry)}\r\n{entry}\r\n${size(chunks)}\r\n{chunks}\r\n{bucket.begin_keys}"
        f"${len(now)}\r\n{now}\r\n${size(member)}\r\n{member}\r\n${size(write_id)}\r\n{write_id}\r\n"
        f"${size(fingerprint)}\r\n{fingerprint}\r\n${size(holder)}\r\n{holder}\r\n$1\r\n{'1' if write.repeatable else '0'}\r\n"
        f"${len(lease)}\r\n{lease}\r\n${len(retain)}\r\n{retain}\r\n${len(dead)}\r\n{dead}\r\n"
        f"${size(user_id)}\r\n{user_id}\r\n${size(endpoint)}\r\n{endpoint}\r\n"
        f"${len(basis)}\r\n{basis}\r\n"
    )
    if size is len and not text.isascii():
        return encode_begin(bucket, member, now, write, _bytes_of)
    return text.encode()


def encode_move(
    bucket: Bucket, member: str, now: str, write: Move, known: str, size: Callable[[str], int] = len
) -> Command:
    """Encode a move. `known` is the last write of the cached entry, or ""."""
    entry = bucket.entry + member
    verb, write_id, note, outcome = write.verb.value, write.write_id, write.note, write.outcome
    version, lease, retain, chunks = str(write.version), str(write.lease), str(write.retain), str(outcome.chunks)
    refuse = str(write.refuse)
    words = _MOVE_WORDS + 2
    parts = ""
    if outcome.code is not None:
        words += 2
        code = str(outcome.code)
        parts = f"$4\r\ncode\r\n${len(code)}\r\n{code}\r\n"
    if outcome.headers is not None:
        words += 2
        parts += f"$7\r\nheaders\r\n${size(outcome.headers)}\r\n{outcome.headers}\r\n"
    body = None if outcome.body is None else bytes(outcome.body)  # no copy if it is bytes already
    text = (
        f"*{words if body is None else words + 2}\r\n{bucket.move_head}${size(entry)}\r\n{entry}\r\n{bucket.move_keys}"
        f"${len(verb)}\r\n{verb}\r\n${len(now)}\r\n{now}\r\n${size(member)}\r\n{member}\r\n${size(write_id)}\r\n{write_id}\r\n"
        f"${len(version)}\r\n{version}\r\n${len(lease)}\r\n{lease}\r\n${len(retain)}\r\n{retain}\r\n"
        f"${size(note)}\r\n{note}\r\n${size(known)}\r\n{known}\r\n${len(refuse)}\r\n{refuse}\r\n{parts}$6\r\nchunks\r\n${len(chunks)}\r\n{chunks}\r\n"
    )
    if size is len and not text.isascii():
        return encode_move(bucket, member, now, write, known, _bytes_of)
    return text.encode() if body is None else b"%b$4\r\nbody\r\n$%d\r\n%b\r\n" % (text.encode(), len(body), body)


def _bytes_of(text: str) -> int:
    return len(text.encode())


def encode(*arguments: Argument) -> Command:
    """Encode any command. The driver's own encoder would take most of the time of a batch."""
    sizes_and_data: list[int | bytes] = []
    for argument in arguments:
        # Separate checks: a union type would be created again for each argument.
        if isinstance(argument, str):
            data = argument.encode()
        elif isinstance(argument, int):
            data = b"%d" % argument
        else:
            data = bytes(argument)  # no copy if it is bytes already
        sizes_and_data += (len(data), data)
    return _form(len(arguments)) % tuple(sizes_and_data)


@functools.cache
def _form(count: int) -> bytes:
    return b"*%d\r\n" % count + b"$%d\r\n%b\r\n" * count
