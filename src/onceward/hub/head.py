"""HEAD wherever there is GET: the same answer without its body. Load balancers ask in this way."""

from __future__ import annotations

from typing import Any

from onceward.http.wire import App, Message, Receive, Send

# They answer HEAD by themselves, or never come to an end.
_OWN = ("/content", "/events/stream")


class Head:
    """Asks with GET and passes on everything but the body."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_OWN):
            await self.app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        asked = {**scope, "method": "GET"}
        await self.app(asked, receive, without_body)
        # Whoever counts requests looks here for the route.
        scope.update({name: asked[name] for name in ("endpoint", "route") if name in asked})
