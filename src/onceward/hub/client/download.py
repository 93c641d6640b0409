"""Downloads: the complete bytes of an attachment, verified, over connections that may break."""

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

from onceward.core.log_event import log_event
from onceward.errors import UnexpectedAnswer
from onceward.http.client.policy import RetryPolicy
from onceward.hub.client.connection import HubConnection
from onceward.hub.client.types import Downloaded
from onceward.hub.client.upload import Progress

_PIECE_BYTES = 256 * 1024
_WHOLE, _PART = 200, 206
_ETAG = re.compile(r'"sha256-([0-9a-f]{64})"')
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
# The number of attempts in a row that may break without progress.
_BACKOFF = RetryPolicy(tries=8)

_log = logging.getLogger("onceward.hub.client")
_draw = random.SystemRandom().random


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(slots=True)
class _Download:
    """State of a download. `total` and `etag` come from the first response; every later one must have the same."""

    file: BinaryIO
    progress: Progress
    done: int = 0
    total: int | None = None
    etag: str = ""
    digest: _Hash = field(default_factory=hashlib.sha256)

    def take(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.file.write(piece)


async def download(connection: HubConnection, path: str, file: BinaryIO, progress: Progress) -> Downloaded:
    """Write the bytes into a file. A broken connection is resumed where it broke."""
    one = _Download(file, progress)
    end = time.monotonic() + connection.transfer_seconds
    breaks = 0
    while one.done != one.total:
        before = one.done
        request = connection.get(path, {})
        request.headers["Accept-Encoding"] = "identity"
        if one.total is not None:
            request.headers.update({"Range": f"bytes={one.done}-", "If-Range": one.etag})
        response = await connection.open(request, lambda response: response.status_code in {_WHOLE, _PART})
        try:
            await _receive(one, response)
        except httpx.TransportError as error:
            breaks = 1 if one.done > before else breaks + 1
            pause = _BACKOFF.pause(breaks, 0.0, end - time.monotonic(), _draw())
            if pause is None:
                raise connection.unavailable(request, error) from error
            log_event(
                _log.info,
                "download_interrupted",
                done_bytes=one.done,
                reason=repr(error),
                retry_in_seconds=round(pause, 3),
            )
            await asyncio.sleep(pause)
        finally:
            await response.aclose()
    sha256 = one.digest.hexdigest()
    if (found := _ETAG.fullmatch(one.etag)) is None or found[1] != sha256:
        raise UnexpectedAnswer(
            f"the received bytes do not match the ETag of the stored content: expected {one.etag}, got {sha256}", _WHOLE
        )
    return Downloaded(one.done, sha256)


async def _receive(one: _Download, response: httpx.Response) -> None:
    skipped = one.done - _begin(one, response)
    async for piece in response.aiter_raw(_PIECE_BYTES):
        # A response may begin before the position where the last one broke.
        passed = min(skipped, len(piece))
        skipped -= passed
        if new := piece[passed:]:
            await asyncio.to_thread(one.take, new)
            one.done += len(new)
            one.progress(one.done, one.total or one.done)


def _begin(one: _Download, response: httpx.Response) -> int:
    """Return the position in the content at which this response begins."""
    start, total = 0, int(response.headers.get("Content-Length", -1))
    if response.status_code == _PART:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        start, total = (int(found[1]), int(found[2])) if found else (-1, -1)
    etag = response.headers.get("ETag", "")
    if one.total is None:
        one.total, one.etag = total, etag
    if not 0 <= start <= one.done or (one.total, one.etag) != (total, etag) or total < 0:
        raise UnexpectedAnswer("the range or the content that the hub sent is not what was requested", 200)
    return start
