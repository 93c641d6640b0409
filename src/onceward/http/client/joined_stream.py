"""Streams whose beginning was read ahead, to find out whether they are short enough to be kept in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx


class JoinedStream(httpx.SyncByteStream):
    """The part of a stream that was read, then its rest. It can be iterated once."""

    def __init__(self, taken: list[bytes], rest: Iterator[bytes], whole: httpx.SyncByteStream) -> None:
        self._taken, self._rest, self._whole = taken, rest, whole
        self.begun = False

    def __iter__(self) -> Iterator[bytes]:
        if self.begun:
            raise httpx.StreamConsumed
        self.begun = True
        yield from self._taken
        yield from self._rest

    def close(self) -> None:
        self._whole.close()


class AsyncJoinedStream(httpx.AsyncByteStream):
    """The part of a stream that was read, then its rest. It can be iterated once."""

    def __init__(self, taken: list[bytes], rest: AsyncIterator[bytes], whole: httpx.AsyncByteStream) -> None:
        self._taken, self._rest, self._whole = taken, rest, whole
        self.begun = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.begun:
            raise httpx.StreamConsumed
        self.begun = True
        for chunk in self._taken:
            yield chunk
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._whole.aclose()
