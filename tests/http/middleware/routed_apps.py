"""Applications whose handlers have rules, one for each framework, and requests that go through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import fastapi
import litestar
from flask.views import MethodView
from litestar.params import FromPath
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from onceward.http import Rule, idempotent
from onceward.http.middleware.handler_lookup import asgi_rule

ONE, TWO = Rule(on_crash="hold"), Rule(store=False)

# Methods, paths and rules that every application has that serves `/pay` and `/plain`.
PAYING = [
    ("POST", "/pay", ONE),
    ("PUT", "/pay", TWO),
    ("PATCH", "/pay", None),
    ("POST", "/plain", None),
    ("POST", "/nowhere", None),
]
# An unexpected response.
_UNASKED = Rule(required=True)


class Spy:
    """Stands in for the middleware, and looks up the rule as it does: by the application, and by the scope alone."""

    rule: Rule | None = None
    rule_by_scope: Rule | None = None

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        Spy.rule_by_scope = asgi_rule(scope)
        Spy.rule = asgi_rule(scope, self.app)
        await self.app(scope, receive, send)


def scope_of(path: str, method: str = "POST", root_path: str = "", host: str = "shop.example") -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": root_path + path,
        "raw_path": (root_path + path).encode(), "root_path": root_path, "query_string": b"", "scheme": "http",
        "headers": [(b"host", host.encode())], "server": (host, 80), "client": ("client", 1),
    }  # fmt: skip


def sent(app: Any, scope: dict[str, Any]) -> int:
    """Send a request without a key. Return its status, or 0 without a response. Resets the rules of the spies."""
    statuses: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    Spy.rule = Spy.rule_by_scope = _UNASKED
    asyncio.run(app(scope, receive, send))
    return statuses[0] if statuses else 0


# Starlette and FastAPI.


def endpoint(rule: Rule | None) -> Callable[[Request], Response]:
    def handle(request: Request) -> Response:
        return PlainTextResponse(request.url.path)

    return handle if rule is None else rule(handle)


def paying_routes() -> list[Route]:
    return [
        Route("/pay", endpoint(ONE), methods=["POST"]),
        Route("/pay", endpoint(TWO), methods=["PUT"]),
        Route("/plain", endpoint(None), methods=["POST"]),
    ]


def numbered_payments() -> Starlette:
    """An application to be mounted in another one."""
    return Starlette(routes=[Route("/pay/{id:int}", endpoint(TWO), methods=["POST"])])


def fastapi_app() -> fastapi.FastAPI:
    app = fastapi.FastAPI()
    router, nested = fastapi.APIRouter(prefix="/v1"), fastapi.APIRouter(prefix="/deep")

    @app.post("/pay")
    @ONE
    def pay() -> None: ...

    @TWO
    @app.put("/pay/{name}")
    async def rename(name: str) -> str:
        return name

    @router.post("/pay/{number}")
    @idempotent(store=False)
    async def pay_one(number: int) -> int:
        return number

    @router.post("/plain")
    async def plain() -> None: ...

    @nested.post("/pay")
    @ONE
    async def pay_deep() -> None: ...

    router.include_router(nested, prefix="/er")
    app.include_router(router, prefix="/api")
    return app


# Litestar.


@litestar.post("/pay")
@ONE
async def _pay() -> None: ...


@litestar.post("/plain")
async def _plain() -> None: ...


class _Refunds(litestar.Controller):
    path = "/refunds"

    @litestar.post("/{number:int}")
    @TWO
    async def refund(self, number: FromPath[int]) -> int:
        return number

    @litestar.put("/")
    async def change(self) -> None: ...


def litestar_app(middleware: Sequence[Any] = ()) -> litestar.Litestar:
    api = litestar.Router("/api", route_handlers=[_Refunds])
    return litestar.Litestar([_pay, _plain, _Refunds, api], middleware=middleware, openapi_config=None)


# Flask.


class FlaskPayments(MethodView):
    @ONE
    def post(self) -> str:
        return "paid"

    def put(self) -> str:
        return "changed"
