"""Reject WebSocket handshakes on unknown paths with a 404 problem."""

from __future__ import annotations

from typing import Any

from onceward.http import problem
from onceward.http.asgi_types import App, Receive, Send
from onceward.hub.web.problems import refuse

SOCKET = "/ws"


class WebSocket404Middleware:
    """Middleware that accepts WebSockets only on `/ws`."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] != SOCKET:
            await refuse(
                scope, receive, send, problem.problem(404, "This path does not accept WebSockets. Connect to /ws.")
            )
            return
        await self.app(scope, receive, send)
