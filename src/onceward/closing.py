"""`with` and `async with` for what has a `close`."""

from __future__ import annotations

import abc
import asyncio
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """Closed at the end of its block. `close` may wait; `aclose` lets the event loop go on meanwhile."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish and let go of everything. Safe to call twice."""

    async def aclose(self) -> None:
        """As `close`, without keeping the event loop waiting. Cancelled, it still closes."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
