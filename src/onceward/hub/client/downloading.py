"""A download: the bytes of an attachment, whole and as they were stored, over connections that may break."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

import httpx

from onceward.errors import UnexpectedAnswer
from onceward.http.retry import Patience
from onceward.hub.client.uploading import Progress
from onceward.hub.client.values import Downloaded
from onceward.hub.client.wire import Wire

_PIECE_BYTES = 256 * 1024
_WHOLE, _PART = 200, 206
_ETAG = re.compile(r'"sha256-([0-9a-f]{64})"')
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
# How often in a row a line may break before it has brought anything.
_PATIENCE = Patience(tries=8)

_log = logging.getLogger("onceward.hub.client")
_draw = random.SystemRandom().random


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(slots=True)
class _Download:
    """How far it has come. `total` and `etag` are known from the first answer on, and the same in every later one."""

    file: BinaryIO
    progress: Progress
    done: int = 0
    total: int | None = None
    etag: str = ""
    digest: _Hash = field(default_factory=hashlib.sha256)

    def take(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.file.write(piece)


async def download(wire: Wire, path: str, file: BinaryIO, progress: Progress) -> Downloaded:
    """Write the bytes into a file. A line that broke is resumed where it broke."""
    one = _Download(file, progress)
    end = time.monotonic() + wire.transfer_seconds
    breaks = 0
    while one.done != one.total:
        before = one.done
        request = wire.get(path, {})
        request.headers["Accept-Encoding"] = "identity"
        if one.total is not None:
            request.headers.update({"Range": f"bytes={one.done}-", "If-Range": one.etag})
        response = await wire.open(request, lambda answer: answer.status_code in {_WHOLE, _PART})
        try:
            await _receive(one, response)
        except httpx.TransportError as error:
            breaks = 1 if one.done > before else breaks + 1
            pause = _PATIENCE.pause(breaks, 0.0, end - time.monotonic(), _draw())
            if pause is None:
                raise wire.unavailable(request, error) from error
            _log.info("the download broke after %d bytes (%r); resuming in %.3f s", one.done, error, pause)
            await asyncio.sleep(pause)
        finally:
            await response.aclose()
    sha256 = one.digest.hexdigest()
    if (found := _ETAG.fullmatch(one.etag)) is None or found[1] != sha256:
        raise UnexpectedAnswer(f"the bytes that came are not those that were stored: {one.etag}, not {sha256}", _WHOLE)
    return Downloaded(one.done, sha256)


async def _receive(one: _Download, response: httpx.Response) -> None:
    skipped = one.done - _begin(one, response)
    async for piece in response.aiter_raw(_PIECE_BYTES):
        # An answer may begin earlier than where the last one broke.
        passed = min(skipped, len(piece))
        skipped -= passed
        if new := piece[passed:]:
            await asyncio.to_thread(one.take, new)
            one.done += len(new)
            one.progress(one.done, one.total or one.done)


def _begin(one: _Download, response: httpx.Response) -> int:
    """Where in the content this answer begins."""
    start, total = 0, int(response.headers.get("Content-Length", -1))
    if response.status_code == _PART:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        start, total = (int(found[1]), int(found[2])) if found else (-1, -1)
    etag = response.headers.get("ETag", "")
    if one.total is None:
        one.total, one.etag = total, etag
    if not 0 <= start <= one.done or (one.total, one.etag) != (total, etag) or total < 0:
        raise UnexpectedAnswer("the hub answered with another part, or another content, than was asked for", 200)
    return start
