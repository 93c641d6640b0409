"""ASGI types that the feed needs, and the extensions of our own server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol, TypeAlias, cast

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# Name of the scope's extension for complete WebSocket frames, and the type of the message that has them in `data`.
FRAMES = "onceward.frames"
# An extension of the scope that gives access to the connection.
CONNECTION = "onceward.connection"


class FeedConnection(Protocol):
    """The server's connection, as far as a feed session uses it."""

    def unsent(self) -> int:
        """Return the number of bytes that the client has not taken yet."""
        ...

    def cut(self, last: bytes, number: int, reason: str) -> None:
        """Write these last bytes and, on a WebSocket, a close frame, then drop the connection.

        Does not wait for the client: the connection is gone a moment later, whether the client has read them or not.
        """
        ...


def connection(scope: Scope) -> FeedConnection | None:
    """Return the connection, or None under a server without this extension."""
    return cast("FeedConnection | None", (scope.get("extensions") or {}).get(CONNECTION))


def takes_frames(scope: Scope) -> bool:
    """Return whether the server accepts complete WebSocket frames."""
    return FRAMES in (scope.get("extensions") or {})
