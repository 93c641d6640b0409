"""Base class that adds `with` and `async with` to a class with a `close` method."""

from __future__ import annotations

import abc
import asyncio
from types import TracebackType
from typing import Self


class Closing(abc.ABC):
    """An object that is closed at the end of its `with` block. `close` may block; `aclose` is for event loops."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish and release all resources. Safe to call twice."""

    async def aclose(self) -> None:
        """Close without blocking the event loop. If the caller is cancelled, closing still completes."""
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
