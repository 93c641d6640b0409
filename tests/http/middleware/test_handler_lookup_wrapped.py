"""The rule of a handler is found if the middleware is wrapped around the application, too."""

from __future__ import annotations

from typing import Any

import flask
import litestar
import pytest
import quart
from quart.views import MethodView
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from tests.http.middleware.routed_apps import (
    ONE,
    PAYING,
    TWO,
    FlaskPayments,
    Spy,
    endpoint,
    fastapi_app,
    litestar_app,
    numbered_payments,
    paying_routes,
    scope_of,
    sent,
)
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import EnvironBuilder

from onceward.http import IdempotencyMiddleware, Rule, idempotent
from onceward.http.middleware.handler_lookup import asgi_rule, wsgi_rule
from onceward.store.memory import MemoryStore

one, two = endpoint(ONE), endpoint(TWO)


class Opaque:
    """A middleware that hides the wrapped application."""

    def __init__(self, app: Any) -> None:
        self._wrapped = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._wrapped(scope, receive, send)


def spied(app: Any, path: str) -> Rule | None:
    sent(app, scope_of(path))
    return Spy.rule


def found(app: Any, path: str, method: str = "POST") -> Rule | None:
    """Return the rule found outside of the application, at its own path and behind a proxy's prefix."""
    behind = asgi_rule(scope_of(path, method, root_path="/behind/a/proxy"), app)
    direct = asgi_rule(scope_of(path, method), app)
    assert direct == behind
    return direct


# Starlette and FastAPI.


@pytest.fixture
def starlette() -> Starlette:
    inner = numbered_payments()
    return Starlette(routes=[*paying_routes(), Mount("/deep", inner), Mount("/zipped", GZipMiddleware(inner))])


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        *PAYING,
        ("POST", "/deep/pay/5", TWO),
        ("POST", "/zipped/pay/5", TWO),
        ("POST", "/zipped/pay/x", None),
    ],
)
def test_the_rules_of_starlette_are_found_through_other_middlewares(
    starlette: Starlette, method: str, path: str, rule: Rule | None
) -> None:
    assert found(starlette, path, method) == rule
    assert found(starlette.router, path, method) == rule
    assert found(GZipMiddleware(GZipMiddleware(starlette)), path, method) == rule


def test_the_rules_of_fastapi_are_found_with_its_own_root_path() -> None:
    app = fastapi_app()
    app.root_path = "/shop"

    assert asgi_rule(scope_of("/pay"), app) == ONE
    assert asgi_rule(scope_of("/shop/pay"), app) == ONE
    assert asgi_rule(scope_of("/shop/api/v1/pay/5"), app) == TWO
    assert asgi_rule(scope_of("/v1/pay/5"), app) is None


def test_behind_an_opaque_middleware_the_rules_of_starlette_are_found_through_the_scope(starlette: Starlette) -> None:
    starlette.add_middleware(Opaque)
    starlette.add_middleware(Spy)

    assert spied(starlette, "/pay") == ONE
    assert spied(starlette, "/deep/pay/5") == TWO


def test_a_middleware_around_a_mounted_application_has_the_rules_of_that_application() -> None:
    """The outer application has a route with the same path and another rule."""
    inner = Router([Route("/pay", two, methods=["POST"])])
    routes = [Route("/pay", one, methods=["POST"]), Mount("/inner", Spy(inner)), Mount("/foreign", Spy(Opaque(inner)))]
    outer = Starlette(routes=routes)

    assert spied(outer, "/inner/pay") == TWO
    assert spied(outer, "/foreign/pay") is None


def test_a_middleware_of_a_single_route_has_the_rule_of_its_endpoint() -> None:
    app = Starlette(routes=[Route("/pay", one, methods=["POST"], middleware=[Middleware(Spy)])])

    assert spied(app, "/pay") == ONE


def test_a_bound_method_of_an_object_with_an_application_is_a_handler() -> None:
    class Shop:
        def __init__(self) -> None:
            self.app = Starlette(routes=[Route("/pay", self.pay, methods=["POST"])])

        @ONE
        async def pay(self, request: Request) -> Response:
            return PlainTextResponse(request.method)

    assert found(Shop().app, "/pay") == ONE


# Litestar.


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("POST", "/pay", ONE),
        ("POST", "/pay/", ONE),
        ("POST", "//pay", ONE),
        ("PUT", "/pay", None),
        ("POST", "/plain", None),
        ("POST", "/nowhere", None),
        ("POST", "/refunds/5", TWO),
        ("POST", "/refunds/x", None),
        ("POST", "/api/refunds/5", TWO),
    ],
)
def test_the_rules_of_litestar_are_found(method: str, path: str, rule: Rule | None) -> None:
    app = litestar_app()

    assert found(app, path, method) == rule
    assert found(Spy(app), path, method) == rule


# Quart, Flask.


class QuartPayments(MethodView):
    @ONE
    async def post(self) -> str:
        return "paid"


@pytest.fixture
def quart_app() -> quart.Quart:
    app = quart.Quart("shop")
    blueprint = quart.Blueprint("api", "api", url_prefix="/api")

    @app.post("/pay")
    @ONE
    async def pay() -> str:
        return "paid"

    @app.post("/plain")
    async def plain() -> str:
        return "plain"

    @blueprint.put("/pay/<int:number>")
    @TWO
    def change(number: int) -> str:
        return str(number)

    app.add_url_rule("/payments", view_func=QuartPayments.as_view("payments"))
    app.register_blueprint(blueprint)
    return app


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        ("POST", "/pay", ONE),
        ("PUT", "/pay", None),
        ("POST", "/plain", None),
        ("POST", "/nowhere", None),
        ("POST", "/payments", ONE),
        ("PUT", "/api/pay/5", TWO),
        ("PUT", "/api/pay/x", None),
    ],
)
def test_the_rules_of_quart_are_found(quart_app: quart.Quart, method: str, path: str, rule: Rule | None) -> None:
    assert found(quart_app, path, method) == rule
    assert found(quart_app.asgi_app, path, method) == rule
    assert found(Spy(quart_app.asgi_app), path, method) == rule


def test_the_rules_of_quart_are_found_for_the_host_of_the_request() -> None:
    app = quart.Quart("shop", host_matching=True, static_folder=None)
    app.add_url_rule("/pay", "here", ONE(lambda: "here"), methods=["POST"], host="shop.example")
    app.add_url_rule("/pay", "there", TWO(lambda: "there"), methods=["POST"], host="other.example")

    assert found(app, "/pay") == ONE


def test_the_rules_of_flask_are_found_through_other_middlewares() -> None:
    app = flask.Flask("shop")
    app.add_url_rule("/payments", view_func=FlaskPayments.as_view("payments"))
    environ = EnvironBuilder("/payments", method="POST").get_environ()

    assert wsgi_rule(ProxyFix(app.wsgi_app), environ) == wsgi_rule(ProxyFix(ProxyFix(app)), environ) == ONE


# All of it.


def test_a_middleware_around_an_application_requires_the_key_that_a_handler_requires() -> None:
    required = idempotent(required=True)

    @litestar.post("/required")
    @required
    async def of_litestar() -> None: ...

    of_quart = quart.Quart("shop")

    @of_quart.post("/required")
    @required
    async def of_quart_itself() -> str:
        return "done"

    @required
    async def of_starlette(request: Request) -> Response:
        return PlainTextResponse(request.method)

    of_quart.asgi_app = IdempotencyMiddleware(of_quart.asgi_app, store=MemoryStore())  # type: ignore[method-assign]
    apps = [
        IdempotencyMiddleware(Starlette(routes=[Route("/required", of_starlette, methods=["POST"])]), MemoryStore()),
        IdempotencyMiddleware(litestar.Litestar([of_litestar], openapi_config=None), MemoryStore()),
        of_quart,
    ]

    assert [sent(app, scope_of("/required")) for app in apps] == [400, 400, 400]


# Nothing to be asked.


class Endless:
    @property
    def app(self) -> Endless:
        return self


class Strange:
    """A framework with attributes of the same names and another meaning."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    "app",
    [
        None,
        print,
        object(),
        Endless(),
        Strange(routes=5),
        Strange(routes=["/pay"]),
        Strange(routes={"/pay": one}),
        Strange(routes=[Strange(matches=one)]),
        Strange(asgi_router=None),
        Strange(asgi_router=Strange(handle_routing=None)),
        Strange(url_map=None, view_functions={}),
        Strange(url_map=5, view_functions={}),
        Strange(url_map=5),
    ],
)
def test_an_application_without_readable_routes_has_no_rules(app: Any) -> None:
    assert asgi_rule(scope_of("/pay"), app) is None
    assert asgi_rule({**scope_of("/pay"), "app": app}, Opaque(app)) is None
    assert wsgi_rule(app, EnvironBuilder("/pay", method="POST").get_environ()) is None


def test_a_middleware_with_unrelated_routes_hides_nothing(starlette: Starlette) -> None:
    assert found(Strange(routes=["/metrics"], app=starlette), "/pay") == ONE
