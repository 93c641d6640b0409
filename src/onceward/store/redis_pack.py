"""Commands as Redis reads them: how many words follow, and each with its length in bytes.

The two that every call makes are put together in one go, from what is the same for all keys of a bucket: packed word by
word they took a tenth of a keyed request's time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from onceward.core.claim import Begin, Move

Argument: TypeAlias = bytes | str | int
Command: TypeAlias = bytes

_BEGIN_WORDS = 3 + 7 + 12
_MOVE_WORDS = 3 + 4 + 9


class Names(NamedTuple):
    """The names of one bucket's data."""

    entry: bytes  # with the member behind it
    chunks: bytes  # likewise
    all: bytes
    open: bytes
    due: bytes
    version: bytes
    lapse: bytes


class Bucket(NamedTuple):
    """What the commands for one bucket have in common, packed."""

    entry: str
    chunks: str
    begin_head: str
    begin_keys: str  # behind the names of the entry and of its chunks
    move_head: str  # behind the number of words
    move_keys: str  # behind the name of the entry


def bucket_of(names: Names, script: bytes) -> Bucket:
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


def pack_begin(bucket: Bucket, member: str, now: str, write: Begin, size: Callable[[str], int] = len) -> Command:
    entry, chunks = bucket.entry + member, bucket.chunks + member
    write_id, fingerprint, holder, user_id, endpoint = (
        write.write_id, write.fingerprint, write.holder, write.user_id, write.endpoint
    )  # fmt: skip
    lease, retain, dead = str(write.lease), str(write.retain), str(write.dead)
    text = (
        f"{bucket.begin_head}${size(entry)}\r\n{entry}\r\n${size(chunks)}\r\n{chunks}\r\n{bucket.begin_keys}"
        f"${len(now)}\r\n{now}\r\n${size(member)}\r\n{member}\r\n${size(write_id)}\r\n{write_id}\r\n"
        f"${size(fingerprint)}\r\n{fingerprint}\r\n${size(holder)}\r\n{holder}\r\n$1\r\n{'1' if write.repeatable else '0'}\r\n"
        f"${len(lease)}\r\n{lease}\r\n${len(retain)}\r\n{retain}\r\n${len(dead)}\r\n{dead}\r\n"
        f"${size(user_id)}\r\n{user_id}\r\n${size(endpoint)}\r\n{endpoint}\r\n"
    )
    if size is len and not text.isascii():
        return pack_begin(bucket, member, now, write, _bytes_of)
    return text.encode()


def pack_move(
    bucket: Bucket, member: str, now: str, write: Move, known: str, size: Callable[[str], int] = len
) -> Command:
    """`known` as in `Held`."""
    entry = bucket.entry + member
    verb, write_id, note, outcome = write.verb.value, write.write_id, write.note, write.outcome
    version, lease, retain, chunks = str(write.version), str(write.lease), str(write.retain), str(outcome.chunks)
    words = _MOVE_WORDS + 2
    parts = ""
    if outcome.code is not None:
        words += 2
        code = str(outcome.code)
        parts = f"$4\r\ncode\r\n${len(code)}\r\n{code}\r\n"
    if outcome.headers is not None:
        words += 2
        parts += f"$7\r\nheaders\r\n${size(outcome.headers)}\r\n{outcome.headers}\r\n"
    body = None if outcome.body is None else bytes(outcome.body)  # itself, where it is that already
    text = (
        f"*{words if body is None else words + 2}\r\n{bucket.move_head}${size(entry)}\r\n{entry}\r\n{bucket.move_keys}"
        f"${len(verb)}\r\n{verb}\r\n${len(now)}\r\n{now}\r\n${size(member)}\r\n{member}\r\n${size(write_id)}\r\n{write_id}\r\n"
        f"${len(version)}\r\n{version}\r\n${len(lease)}\r\n{lease}\r\n${len(retain)}\r\n{retain}\r\n"
        f"${size(note)}\r\n{note}\r\n${size(known)}\r\n{known}\r\n{parts}$6\r\nchunks\r\n${len(chunks)}\r\n{chunks}\r\n"
    )
    if size is len and not text.isascii():
        return pack_move(bucket, member, now, write, known, _bytes_of)
    return text.encode() if body is None else b"%b$4\r\nbody\r\n$%d\r\n%b\r\n" % (text.encode(), len(body), body)


def _bytes_of(text: str) -> int:
    return len(text.encode())


def pack(*arguments: Argument) -> Command:
    """Any command. The driver's own packer takes most of a batch's time."""
    measured: list[int | bytes] = []
    for argument in arguments:
        # One kind asked for after the other: a union of them would be made anew each time.
        if isinstance(argument, str):
            data = argument.encode()
        elif isinstance(argument, int):
            data = b"%d" % argument
        else:
            data = bytes(argument)  # itself, where it is that already
        measured += (len(data), data)
    return _form(len(arguments)) % tuple(measured)


@functools.cache
def _form(count: int) -> bytes:
    return b"*%d\r\n" % count + b"$%d\r\n%b\r\n" * count
