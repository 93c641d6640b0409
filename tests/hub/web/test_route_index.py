"""The index leads every request to the same route or refusal as the framework without it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from fastapi import FastAPI, WebSocket
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from tests.hub.asgi_client import request, send_request, websocket

from onceward.http.asgi_types import App
from onceward.hub.app import create_app
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.web import problems, route_index
from onceward.hub.web.route_index import RouteIndex

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW")
# Paths that are like a route's, and are not, or only for a router that is careless.
STRANGE = [
    "", "*", "/", "//", "///", "/healthz/", "//healthz", "/healthz\n", "/healthz\n\n", "/Healthz", "/health", "/%2Fhealthz",
    "/api", "/api/", "/api/v1", "/api/v1/topics/", "/api/v1/topics/a/", "/api/v1/topics//attachments",
    "/api/v1/topics/a/b", "/api/v1/topics/a/b/attachments", "/api/v1/topics/ü 1?%#/attachments",
    "/api/v1/topics/{topic_id}", "/api/v1/topics\n", "/api/v1/topics/a\n", "/api/v1/topics/a\nb", "/api/v2/topics/a",
    "/api/v1/claims/show/", "/v1/tasks/..", "/v1/attachments/a/content/", "/chat/", "/ws/", "/wss", "/none/at/all",
]  # fmt: skip


def stub(path: str, methods: Iterable[str] | None) -> Route | WebSocketRoute:
    """A route that responds with its name and its parameters."""
    if methods is None:

        async def accept(socket: WebSocket) -> None:
            await socket.accept(subprotocol=path)

        return WebSocketRoute(path, accept)

    async def show(request: Request) -> JSONResponse:
        in_scope = request.scope["router"] is request.app.router
        return JSONResponse([path, request.method, request.path_params, in_scope])

    return Route(path, show, methods=list(methods))


def application(routes: Iterable[Any], *, indexed: bool) -> App:
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.router.routes.extend(routes)
    problems.install(app)
    if indexed:
        route_index.install(app)
    return app


@pytest.fixture(name="hub_routes", scope="module")
def _hub_routes(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    app: Any = create_app(Config(HubSettings(data_dir=str(tmp_path_factory.mktemp("hub")))))
    while not hasattr(app, "routes"):
        app = app.app
    return list(app.routes)


def test_every_path_of_the_hub_gets_what_it_gets_without_the_index(hub_routes: list[Any]) -> None:
    stubs = [stub(route.path, getattr(route, "methods", None)) for route in hub_routes]
    plain, indexed = application(stubs, indexed=False), application(stubs, indexed=True)
    paths = [*STRANGE, *(route.path.replace("{", "a-").replace("}", "~é") for route in stubs)]

    statuses = set()
    for path in paths:
        for method in METHODS:
            expected, found = (send_request(app, request(method, path)) for app in (plain, indexed))
            assert found.messages == expected.messages, (method, path)
            statuses.add(found.status)
        expected, found = (send_request(app, websocket(path)) for app in (plain, indexed))
        assert found.messages == expected.messages, path

    assert statuses == {200, 404, 405}


def test_no_group_of_the_hub_has_more_than_a_few_routes(hub_routes: list[Any]) -> None:
    """Except the pages of the console, which are requested one at a time."""
    sizes = RouteIndex(hub_routes, len)

    found = [sizes.find(request("GET", one.path)) for one in hub_routes if not one.path.startswith("/console/")]

    assert max(size or len(hub_routes) for size in found) <= 8


def test_a_405_names_the_methods_of_all_routes_of_the_path() -> None:
    app = application([stub("/a/{x}", ["POST"]), stub("/a/{x}", ["GET"]), stub("/a/b", ["PUT"])], indexed=True)

    assert send_request(app, request("DELETE", "/a/b")).headers["allow"] == "GET, HEAD, POST, PUT"
    assert send_request(app, request("DELETE", "/a/c")).headers["allow"] == "GET, HEAD, POST"
    assert send_request(app, request("DELETE", "/a/c/d")).status == 404


@pytest.mark.parametrize(
    "first",
    [
        stub("/{anything}", ["GET"]),
        stub("/{rest:path}", ["GET"]),
        stub("/a/{number:int}", ["GET"]),
        Mount("/a", PlainTextResponse("mounted")),
        Mount("", PlainTextResponse("everything")),
    ],
    ids=["parameter-first", "rest-of-path", "number", "mount", "mount-of-all"],
)
@pytest.mark.parametrize("path", ["/a", "/a/1", "/a/b", "/a/b/c", "/x", "/"])
def test_routes_that_match_several_groups_keep_their_place(first: Any, path: str) -> None:
    fixed = [stub("/a", ["GET"]), stub("/a/{x}", ["GET"]), stub("/a/{x}/c", ["POST"])]
    for routes in ([first, *fixed], [*fixed, first], [fixed[0], first, *fixed[1:]]):
        plain, indexed = application(routes, indexed=False), application(routes, indexed=True)
        for method in ("GET", "POST"):
            assert (
                send_request(indexed, request(method, path)).messages
                == send_request(plain, request(method, path)).messages
            ), routes


def test_under_a_root_path_every_route_is_tried() -> None:
    routes = [stub("/a", ["GET"]), stub("/a/{x}", ["GET"])]
    scope = request("GET", "/a/a", root_path="/a")
    indexed = application(routes, indexed=True)

    assert send_request(indexed, dict(scope)).json[0] == "/a"
    assert send_request(indexed, {**scope, "root_path": ""}).json[0] == "/a/{x}"


def test_an_application_that_redirects_slashes_is_refused() -> None:
    with pytest.raises(ValueError, match="redirect_slashes=False"):
        route_index.install(FastAPI())
