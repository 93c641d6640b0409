"""WebSockets at addresses that there are not: 404 and a problem, as for every other request."""

from __future__ import annotations

from typing import Any

from onceward.http import problem
from onceward.http.wire import App, Receive, Send
from onceward.hub.problems import refuse

SOCKET = "/ws"


class Sockets:
    """Lets WebSockets through to the one address that has any."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] != SOCKET:
            await refuse(scope, receive, send, problem.problem(404, "There is no WebSocket at this address"))
            return
        await self.app(scope, receive, send)
