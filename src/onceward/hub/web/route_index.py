"""Route index: find the few routes that can match a path, so that not every route is tried for every request.

Routes are grouped by their number of segments and their first segment. A path can only match routes of its own group,
because a parameter such as `{topic_id}` matches one segment. Within a group, the framework matches as always: in order,
with its own responses for unknown paths and methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar

from fastapi import APIRouter, FastAPI

from onceward.http.asgi_types import Receive, Send

T = TypeVar("T")
_Group: TypeAlias = tuple[int, str]

# The parameter type of Starlette that matches exactly one segment.
_ONE_SEGMENT = "[^/]+"


class RouteIndex(Generic[T]):
    """Groups of routes, each turned into a value by `make`."""

    def __init__(self, routes: Iterable[Any], make: Callable[[list[Any]], T]) -> None:
        grouped = [(_group_of_route(route), route) for route in routes]
        # A route without a group, such as a mount, can match paths of every group.
        self._values = {
            group: make([route for own, route in grouped if own is None or own == group])
            for group, _ in grouped
            if group is not None
        }

    def find(self, scope: Any) -> T | None:
        """Return the value of the only group that can match, or None if every route must be tried."""
        return None if scope.get("root_path") else self._values.get(_group_of(scope["path"]))


def _group_of(path: str) -> _Group:
    return path.count("/"), path[1:].partition("/")[0]


def _group_of_route(route: Any) -> _Group | None:
    path, parameters = getattr(route, "path", ""), getattr(route, "param_convertors", None)
    if not path or parameters is None or any(one.regex != _ONE_SEGMENT for one in parameters.values()):
        return None
    group = _group_of(path)
    return None if "{" in group[1] else group


def install(app: FastAPI) -> None:
    """Make the application find its routes through an index. Routes that are added later are not found.

    The application must not redirect to a path with or without a trailing slash: that path is in another group.
    """
    router = app.router
    if router.redirect_slashes:
        raise ValueError("a route index requires redirect_slashes=False")
    index = RouteIndex(router.routes, lambda routes: APIRouter(routes=routes, redirect_slashes=False))

    async def indexed(scope: Any, receive: Receive, send: Send) -> None:
        found = index.find(scope) if scope["type"] != "lifespan" else None
        # Handlers and middlewares find the application's own router in the scope.
        scope.setdefault("router", router)
        await (found or router).app(scope, receive, send)

    router.middleware_stack = indexed
