"""The little of ASGI that the feed speaks by itself, and what our own server adds to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias, cast

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# The extension of the scope, and the type of the message that carries ready-made frames in `data`.
FRAMES = "onceward.frames"
# The extension that gives access to the connection itself.
CONNECTION = "onceward.connection"


class Connection(Protocol):
    """What a session may ask of the server about its connection."""

    def unsent(self) -> int:
        """How many bytes wait for the client."""
        ...

    def cut(self, last: bytes, number: int, reason: str) -> None:
        """Write these last bytes, and a close where there is such a thing, without waiting for the client; a moment
        later nothing of the connection is left, whether it has read them or not.
        """
        ...


def connection(scope: Scope) -> Connection | None:
    return cast("Connection | None", (scope.get("extensions") or {}).get(CONNECTION))


def takes_frames(scope: Scope) -> bool:
    return FRAMES in (scope.get("extensions") or {})
