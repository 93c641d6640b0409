"""HEAD for every GET route: the same response without its body. Load balancers send HEAD requests."""

from __future__ import annotations

from typing import Any

from onceward.http.asgi_types import App, Message, Receive, Send

# Routes that handle HEAD themselves, or whose response never ends.
_OWN = ("/content", "/events/stream")


class HeadMiddleware:
    """Middleware that turns HEAD into GET and drops the response body."""

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

        get_scope = {**scope, "method": "GET"}
        await self.app(get_scope, receive, without_body)
        # The request metrics read the route from this scope.
        scope.update({name: get_scope[name] for name in ("endpoint", "route") if name in get_scope})
