"""An upload: a multipart message around a file that is read anew for each try and never held whole.

The message is the same on every try and in every process: its boundary is chosen by the content alone. So its digest,
sent ahead, stands for it; the hub need not keep the message to know it again, and notices when it is not what came.
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
from onceward.hub.client import answers
from onceward.hub.client.values import TaskAttachment
from onceward.hub.client.wire import Wire

# How many bytes are done, of how many.
Progress: TypeAlias = Callable[[int, int], object]
Source: TypeAlias = str | os.PathLike[str] | BinaryIO

_PIECE_BYTES = 256 * 1024
# What cannot be read twice is kept so far in memory, and beyond that in a temporary file.
_MEMORY_BYTES_MAX = 1024 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def no_progress(_done: int, _total: int) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What comes before and after the file's bytes, how many these are, and the digest of all of it."""

    boundary: str
    head: bytes
    tail: bytes
    start: int
    size: int
    digest: bytes


class _Body(httpx.ByteStream):
    """Read from the file on each try. To httpx, and to whoever tries again, a `ByteStream` is what can be sent again."""

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
                raise InvalidInput("the file became shorter while it was sent")
            yield piece
            done += len(piece)
            self._progress(done, message.size)
        yield message.tail


async def upload(
    wire: Wire,
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
        request = wire.request("POST", path, b"", key)
        request.headers["Content-Type"] = f"multipart/form-data; boundary={message.boundary}"
        request.headers["Content-Length"] = str(len(message.head) + message.size + len(message.tail))
        request.headers["Content-Digest"] = f"sha-256=:{base64.b64encode(message.digest).decode()}:"
        request.stream = _Body(file, message, progress)
        return answers.read(await wire.send_patiently(request), answers.task_attachment)


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    """The file, where it can be read more than once."""
    if isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield file
    elif source.seekable():
        yield source
    else:
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES_MAX) as kept:
            shutil.copyfileobj(source, kept, _PIECE_BYTES)
            kept.seek(0)
            yield kept  # type: ignore[misc]  # a file in all but its declaration


def _name_of(source: Source) -> str | None:
    name = source if isinstance(source, str | os.PathLike) else getattr(source, "name", None)
    if not isinstance(name, str | os.PathLike) or str(name).startswith("<"):
        # A number, or `<stdin>`: not the name of a file.
        return None
    return Path(name).name


def _message(file: BinaryIO, fields: Sequence[tuple[str, str]], filename: str | None) -> _Message:
    start = file.tell()
    said = "\n".join(value for _, value in fields)
    for number in itertools.count():
        boundary = f"onceward-boundary-{number}"
        if boundary in said or boundary in (filename or ""):
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
        raise InvalidInput(f"this is no text that can be sent: {error}") from error
