"""A proxy to the hub that breaks connections on demand: `async with ConnectionBreakingProxy(url) as proxy: … proxy.url …`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self
from urllib.parse import urlsplit

_READ_BYTES = 64 * 1024


class ConnectionBreakingProxy:
    """A proxy between client and hub. `lose_answers` is the number of responses it drops by closing the connection.

    With `answer_bytes_max` it cuts each connection after this many bytes of responses.
    """

    def __init__(self, hub_url: str) -> None:
        self.url = ""
        self.lose_answers = 0
        self.answer_bytes_max: int | None = None
        self.connections = 0
        self.live: set[asyncio.Task[None]] = set()
        self._hub_port = urlsplit(hub_url).port
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        while self.live:
            await self.cut()

    async def cut(self) -> None:
        """Cut all open connections."""
        cut = list(self.live)
        for task in cut:
            task.cancel()
        await asyncio.wait(cut) if cut else None

    async def until_idle(self) -> None:
        """Wait until no connection is left."""
        while self.live:
            await asyncio.wait(self.live)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.live.add(task)
        self.connections += 1
        far: asyncio.StreamWriter | None = None
        try:
            answers, far = await asyncio.open_connection("127.0.0.1", self._hub_port)
            passing = [
                asyncio.create_task(self._pass(reader, far)),
                asyncio.create_task(self._pass(answers, writer, is_answer=True)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in passing:
                    one.cancel()
                await asyncio.wait(passing)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self.live.discard(task)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool = False
    ) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ_BYTES):
                if is_answer and self.lose_answers > 0:
                    self.lose_answers -= 1
                    return
                passed += len(data)
                writer.write(data)
                await writer.drain()
                if is_answer and self.answer_bytes_max is not None and passed > self.answer_bytes_max:
                    return
