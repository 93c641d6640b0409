"""Uploads: a multipart message around a file, which is read again for each attempt and never held in memory.

The message is the same for every attempt and in every process, because its boundary depends only on the content. Its
digest is sent in the head and identifies it. So the hub does not have to store the message to recognize a retry, and
detects a body that does not match.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import httpx

from onceward.errors import InvalidInput
from onceward.hub.client import responses
from onceward.hub.client.connection import HubConnection
from onceward.hub.client.types import TaskAttachment

# Takes the number of bytes done, and the total.
Progress: TypeAlias = Callable[[int, int], object]
Source: TypeAlias = str | os.PathLike[str] | BinaryIO

_PIECE_BYTES = 256 * 1024
# Up to this size, a file that cannot be read twice is copied to memory; a larger one to a temporary file.
_MEMORY_BYTES_MAX = 1024 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def no_progress(_done: int, _total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A multipart message: the bytes before and after the file, the file's position and size, and the digest of all."""

    boundary: str
    head: bytes
    tail: bytes
    start: int
    size: int
    digest: bytes


class _Body(httpx.ByteStream):
    """Request body that reads the file on each attempt. It is a `ByteStream`, because httpx can send that again."""

    def __init__(self, file: BinaryIO, message: _Message, progress: Progress) -> None:
        super().__init__(b"")
        self._file = file
        self._message = message
        self._progress = progress

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message, done = self._message, 0
        yield message.head
        await asyncio.to_thread(self._file.seek, message.start)
        while done < message.size:
            piece = await asyncio.to_thread(self._file.read, min(_PIECE_BYTES, message.size - done))
            if not piece:
                raise InvalidInput("the file became shorter during the upload")
            yield piece
            done += len(piece)
            self._progress(done, message.size)
        yield message.tail


async def upload(
    connection: HubConnection,
    path: str,
    source: Source,
    fields: Sequence[tuple[str, str]],
    filename: str | None,
    key: str | None,
    progress: Progress,
) -> TaskAttachment:
    with _opened(source) as file:
        name = _name_of(source) if filename is None else filename
        message = await asyncio.to_thread(_message, file, fields, name)
        request = connection.request("POST", path, b"", key)
        request.headers["Content-Type"] = f"multipart/form-data; boundary={message.boundary}"
        request.headers["Content-Length"] = str(len(message.head) + message.size + len(message.tail))
        request.headers["Content-Digest"] = f"sha-256=:{base64.b64encode(message.digest).decode()}:"
        request.stream = _Body(file, message, progress)
        return responses.read(await connection.send_transfer(request), responses.task_attachment)


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    """Open a file that can be read more than once."""
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield file
    elif source.seekable():
        yield source
    else:
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES_MAX) as buffer:
            shutil.copyfileobj(source, buffer, _PIECE_BYTES)
            buffer.seek(0)
            yield buffer  # type: ignore[misc]  # a BinaryIO, though not declared as one


def _name_of(source: Source) -> str | None:
    name = source if isinstance(source, str | os.PathLike) else getattr(source, "name", None)
    if not isinstance(name, str | os.PathLike) or str(name).startswith("<"):
        # A file descriptor, or `<stdin>`: not a file name.
        return None
    return Path(name).name


def _message(file: BinaryIO, fields: Sequence[tuple[str, str]], filename: str | None) -> _Message:
    start = file.tell()
    texts = "\n".join(value for _, value in fields)
    for number in itertools.count():
        boundary = f"onceward-boundary-{number}"
        if boundary in texts or boundary in (filename or ""):
            continue
        head, tail = _head(boundary, fields, filename), f"\r\n--{boundary}--\r\n".encode()
        digest, size = hashlib.sha256(head), 0
        file.seek(start)
        before = b""
        while piece := file.read(_PIECE_BYTES):
            if boundary.encode() in before + piece:
                break
            before = piece[-len(boundary) :]
            digest.update(piece)
            size += len(piece)
        else:
            digest.update(tail)
            return _Message(boundary, head, tail, start, size, digest.digest())
    raise AssertionError  # there is always another number


def _head(boundary: str, fields: Sequence[tuple[str, str]], filename: str | None) -> bytes:
    head = io.StringIO(newline="")
    for name, value in fields:
        head.write(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n')
    head.write(f'--{boundary}\r\nContent-Disposition: form-data; name="content"')
    if filename is not None:
        plain = _CONTROL.sub("", filename).replace("\\", "\\\\").replace('"', '\\"')
        head.write(f'; filename="{plain}"')
    head.write("\r\nContent-Type: application/octet-stream\r\n\r\n")
    try:
        return head.getvalue().encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a field or the file name is not valid UTF-8 text: {error}") from error
