"""The rule of a request, found through each framework's own router: the one on the handler that will run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flask
import pytest
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Host, Mount, Route, Router
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
from werkzeug.test import EnvironBuilder

from onceward.http import Rule
from onceward.http.middleware.handler_lookup import asgi_rule, wsgi_rule


def rule_of(app: Any, path: str, method: str = "POST", host: str = "testserver", root_path: str = "") -> Rule | None:
    """Return the rule found for a request that passes through the whole application."""
    sent(app, scope_of(path, method, root_path, host))
    return Spy.rule_by_scope


# Starlette.


class Payments(HTTPEndpoint):
    @ONE
    async def post(self, request: Request) -> Response:
        return PlainTextResponse(request.method)

    async def put(self, request: Request) -> Response:
        return PlainTextResponse(request.method)


@TWO
class Refunds(HTTPEndpoint):
    @ONE
    async def post(self, request: Request) -> Response:
        return PlainTextResponse(request.method)

    async def put(self, request: Request) -> Response:
        return PlainTextResponse(request.method)


@pytest.fixture(scope="module")
def starlette() -> Starlette:
    api = Router([Route("/pay", endpoint(ONE), methods=["POST"]), Mount("/deep", numbered_payments())])
    app = Starlette(
        routes=[
            *paying_routes(),
            Route("/items/{name}", endpoint(None), methods=["POST"]),
            Route("/items/special", endpoint(ONE), methods=["POST"]),
            Route("/payments", Payments),
            Route("/refunds", Refunds),
            Route("/partial", functools.partial(endpoint(ONE)), methods=["POST"]),
            Mount("/api", api),
            Mount("/api", Router([Route("/late", endpoint(ONE), methods=["POST"])])),
            Mount("/foreign", Spy(PlainTextResponse("foreign"))),
            Host("shop.example", Router([Route("/", endpoint(ONE), methods=["POST"])])),
        ]
    )
    app.add_middleware(Spy)
    return app


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        *PAYING,
        ("POST", "/", None),
        ("POST", "/api/pay", ONE),
        ("POST", "/api/deep/pay/5", TWO),
        ("POST", "/api/deep/pay/x", None),
        ("POST", "/api/deep", None),
        ("POST", "/partial", ONE),
        ("POST", "/payments", ONE),
        ("PUT", "/payments", None),
        ("POST", "/refunds", ONE),
        ("PUT", "/refunds", TWO),
    ],
)
def test_a_starlette_request_has_the_rule_of_its_handler(
    starlette: Starlette, method: str, path: str, rule: Rule | None
) -> None:
    assert rule_of(starlette, path, method) == rule
    assert rule_of(starlette, path, method, root_path="/behind/a/proxy") == rule


def test_the_rule_of_a_shadowed_starlette_route_is_not_used(starlette: Starlette) -> None:
    assert rule_of(starlette, "/items/special") is None
    assert rule_of(starlette, "/api/late") is None, "the first mount takes it, and has no such route"


def test_the_host_of_a_starlette_route_matters(starlette: Starlette) -> None:
    assert rule_of(starlette, "/", host="shop.example") == ONE
    assert rule_of(starlette, "/", host="other.example") is None


def test_a_starlette_route_added_later_is_found_at_once(starlette: Starlette) -> None:
    assert rule_of(starlette, "/late") is None

    starlette.router.routes.append(Route("/late", endpoint(ONE), methods=["POST"]))

    assert rule_of(starlette, "/late") == ONE


def test_a_middleware_inside_a_mounted_application_sees_its_routes() -> None:
    inner = Starlette(routes=[Route("/pay", endpoint(ONE), methods=["POST"])])
    inner.add_middleware(Spy)
    outer = Starlette(routes=[Mount("/api", inner)])

    assert rule_of(outer, "/api/pay") == ONE
    assert rule_of(outer, "/api/pay", root_path="/proxy") == ONE


# FastAPI.


def test_a_fastapi_request_has_the_rule_of_its_handler_in_included_routers_too() -> None:
    app = fastapi_app()
    app.add_middleware(Spy)

    found = {
        path: rule_of(app, path)
        for path in ("/pay", "/api/v1/pay/5", "/api/v1/plain", "/api/v1/er/deep/pay", "/v1/pay/5")
    }
    assert found == {
        "/pay": ONE, "/api/v1/pay/5": TWO, "/api/v1/plain": None, "/api/v1/er/deep/pay": ONE, "/v1/pay/5": None,
    }  # fmt: skip
    assert rule_of(app, "/pay/ann", "PUT") == TWO
    assert rule_of(app, "/pay/ann", "POST") is None


# Litestar.


def test_a_litestar_request_has_the_rule_of_its_handler_in_controllers_too() -> None:
    app = litestar_app([Spy])

    assert rule_of(app, "/pay") == ONE
    assert rule_of(app, "/plain") is None
    assert rule_of(app, "/refunds/5") == TWO
    assert rule_of(app, "/api/refunds/5") == TWO
    assert rule_of(app, "/refunds", "PUT") is None


# Flask.


@TWO
class FlaskRefunds(MethodView):
    def post(self) -> str:
        return "refunded"


@pytest.fixture(scope="module")
def flask_app() -> flask.Flask:
    app = flask.Flask("shop")
    blueprint = flask.Blueprint("api", "api", url_prefix="/api")
    nested = flask.Blueprint("deep", "deep", url_prefix="/deep")

    def view(rule: Rule | None) -> Callable[..., str]:
        def handle(**_: object) -> str:
            return "handled"

        return handle if rule is None else rule(handle)

    app.add_url_rule("/pay", "pay", view(ONE), methods=["POST"])
    app.add_url_rule("/pay", "change", view(TWO), methods=["PUT"])
    app.add_url_rule("/plain", "plain", view(None), methods=["POST"])
    app.add_url_rule("/größe/<name>", "size", view(ONE), methods=["POST"])
    app.add_url_rule("/slash/", "slash", view(ONE), methods=["POST"])
    app.add_url_rule("/payments", view_func=FlaskPayments.as_view("payments"))
    app.add_url_rule("/refunds", view_func=FlaskRefunds.as_view("refunds"))
    blueprint.add_url_rule("/pay/<int:number>", "pay", view(TWO), methods=["POST"])
    nested.add_url_rule("/pay", "pay", view(ONE), methods=["POST"])
    blueprint.register_blueprint(nested)
    app.register_blueprint(blueprint)
    return app


@pytest.mark.parametrize(
    ("method", "path", "rule"),
    [
        *PAYING,
        ("POST", "/größe/xl", ONE),
        ("POST", "/slash/", ONE),
        ("POST", "/slash", None),
        ("POST", "/api/pay/5", TWO),
        ("POST", "/api/pay/x", None),
        ("POST", "/api/deep/pay", ONE),
        ("POST", "/payments", ONE),
        ("PUT", "/payments", None),
        ("POST", "/refunds", TWO),
    ],
)
def test_a_flask_request_has_the_rule_of_its_view(
    flask_app: flask.Flask, method: str, path: str, rule: Rule | None
) -> None:
    environ = EnvironBuilder(path, method=method).get_environ()
    mounted = {**environ, "SCRIPT_NAME": "/behind/a/proxy"}

    assert wsgi_rule(flask_app.wsgi_app, environ) == wsgi_rule(flask_app, environ) == rule
    assert wsgi_rule(flask_app.wsgi_app, mounted) == rule


# Nothing to be asked.


@pytest.mark.parametrize("scope", [{}, {"app": None}, {"app": object()}, {"route_handler": None, "path": "/"}])
def test_an_application_without_readable_routes_has_no_rules(scope: dict[str, Any]) -> None:
    assert asgi_rule(scope) is None


def test_a_wsgi_application_without_readable_routes_has_no_rules() -> None:
    assert wsgi_rule(lambda environ, start: [], EnvironBuilder("/pay").get_environ()) is None  # noqa: ARG005
