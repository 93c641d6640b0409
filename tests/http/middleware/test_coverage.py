"""Handlers whose rules no middleware enforces are found, in every framework, before they run unprotected."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

import fastapi
import flask
import litestar
import pytest
import quart
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import clear_url_caches, include, path
from django.views import View
from flask.views import MethodView
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route, Router
from tests.http.asgi_server import reply, run, send_request
from tests.http.wsgi_server import app_sending
from tests.http.wsgi_server import send_request as ask_wsgi

from onceward.errors import InvalidOption, NotGuarded
from onceward.http import (
    IdempotencyMiddleware,
    WSGIIdempotencyMiddleware,
    check_guarded,
    document_idempotency,
    idempotency,
    idempotent,
)
from onceward.http.asgi_types import Message, Receive, Send
from onceward.http.webhooks import stripe
from onceward.store.memory import MemoryStore
from onceward.testing import FaultyStore

HOLD = idempotent(on_crash="hold")
REQUIRED = idempotent(required=True)
HARMLESS = idempotent(wait_seconds=5)


def around(app: Any, **options: Any) -> IdempotencyMiddleware:
    return IdempotencyMiddleware(app, MemoryStore(), metrics=False, **options)


def around_wsgi(app: Any, **options: Any) -> WSGIIdempotencyMiddleware:
    return WSGIIdempotencyMiddleware(app, MemoryStore(), metrics=False, **options)


def idempotency_middleware(**options: Any) -> Middleware:
    return Middleware(IdempotencyMiddleware, store=MemoryStore(), metrics=False, **options)


class VisibleMiddleware:
    """A middleware that has the wrapped application as `.app`."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class OpaqueMiddleware:
    """A middleware that hides the wrapped application."""

    def __init__(self, app: Any) -> None:
        self._hidden = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._hidden(scope, receive, send)


def unguarded(app: Any) -> set[str]:
    """Return the method and path of each reported handler, with the reason."""
    try:
        check_guarded(app)
    except NotGuarded as error:
        return {f"{found[1]}: {found[2]}" for found in re.finditer(r"(\S+ \S+) \([^)]+\): ([^;.]+)", str(error))}
    return set()


# Starlette and FastAPI.


@HOLD
def pay(_: Request) -> Response:
    return PlainTextResponse("paid")


@HARMLESS
def plain(_: Request) -> Response:
    return PlainTextResponse("")


class Refunds(HTTPEndpoint):
    @REQUIRED
    async def post(self, _: Request) -> Response:
        return PlainTextResponse("")

    async def put(self, _: Request) -> Response:
        return PlainTextResponse("")


def routes() -> list[Any]:
    return [
        Route("/api/pay/{order}", pay, methods=["POST"]),
        Route("/api/plain", plain, methods=["POST"]),
        Mount("/api/v1", routes=[Route("/refunds", Refunds)]),
        Mount("/sub", Starlette(routes=[Route("/pay", pay, methods=["GET", "PUT"])])),
    ]


ALL = {"POST /api/pay/{order}", "POST /api/v1/refunds", "PUT /sub/pay"}


def named(why: str, *handlers: str) -> set[str]:
    return {f"{handler}: {why}" for handler in handlers}


def test_every_handler_without_a_middleware_is_listed() -> None:
    assert unguarded(Starlette(routes=routes())) == named("no middleware", *ALL)
    with pytest.raises(NotGuarded, match=r"tests\.http\.middleware\.test_coverage\.pay\)") as raised:
        check_guarded(Starlette(routes=routes()))
    assert raised.value.code == "not-guarded"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Starlette(routes=routes(), middleware=[idempotency_middleware()]),
        lambda: Starlette(
            routes=routes(), middleware=[Middleware(VisibleMiddleware), idempotency_middleware(enabled=False)]
        ),
        lambda: Starlette(
            routes=routes(),
            middleware=[idempotency_middleware(paths=["/api/"]), idempotency_middleware(paths=["/sub/"])],
        ),
        lambda: around(Starlette(routes=routes())),
        lambda: VisibleMiddleware(around(VisibleMiddleware(Starlette(routes=routes())), methods=["post", "put"])),
        lambda: Starlette(routes=[Mount("/all", Router(routes=routes()), middleware=[idempotency_middleware()])]),
        lambda: Starlette(routes=[Mount("/all", around(Starlette(routes=routes())))]),
        lambda: Starlette(routes=[Route("/pay", pay, methods=["POST"], middleware=[idempotency_middleware()])]),
        lambda: Router(routes=routes(), middleware=[idempotency_middleware()]),
    ],
    ids=["added", "off", "two", "wrapped", "between", "mount", "mounted", "route", "router"],
)
def test_a_middleware_anywhere_around_a_handler_is_found(make: Callable[[], Any]) -> None:
    assert unguarded(make()) == set()


def test_a_handler_outside_the_covered_paths_or_methods_is_listed() -> None:
    assert unguarded(around(Starlette(routes=routes()), paths=["/api/"])) == named("outside paths=", "PUT /sub/pay")
    assert unguarded(around(Starlette(routes=routes()), methods=["POST"])) == named(
        "not among methods=", "PUT /sub/pay"
    )
    reading = Starlette(routes=[Route("/pay", pay, methods=["GET"])], middleware=[idempotency_middleware()])
    assert unguarded(reading) == named("not among methods=", "GET/HEAD /pay")


def test_one_middleware_in_a_mount_does_not_guard_the_other_mounts() -> None:
    app = Starlette(routes=[Mount("/in", around(Starlette(routes=routes()))), *routes()])

    assert unguarded(app) == named("no middleware", *ALL)


def test_handlers_in_fastapi_routers_are_found() -> None:
    def make() -> fastapi.FastAPI:
        app, router = fastapi.FastAPI(), fastapi.APIRouter(prefix="/v1")

        @router.post("/pay")
        @REQUIRED
        def pay() -> None: ...

        app.include_router(router, prefix="/api")
        return app

    guarded = make()
    guarded.add_middleware(IdempotencyMiddleware, store=MemoryStore(), metrics=False)

    assert unguarded(make()) == named("no middleware", "POST /api/v1/pay")
    assert unguarded(guarded) == set()


# Litestar.


@litestar.post("/api/pay/{order:int}")
@HOLD
async def litestar_pay() -> None: ...


@litestar.put("/plain")
@HARMLESS
async def litestar_plain() -> None: ...


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda app: app(), named("no middleware", "POST /api/pay/{order}")),
        (lambda app: around(app()), set()),
        (lambda app: around(app(), paths=["/v2/"]), named("outside paths=", "POST /api/pay/{order}")),
        (lambda app: app([DefineMiddleware(IdempotencyMiddleware, store=MemoryStore(), metrics=False)]), set()),
        (lambda app: app([around]), set()),
    ],
    ids=["none", "wrapped", "elsewhere", "added", "factory"],
)
def test_litestar_handlers_are_found(make: Callable[[Any], Any], expected: set[str]) -> None:
    def app(middleware: Any = ()) -> litestar.Litestar:
        return litestar.Litestar([litestar_pay, litestar_plain], middleware=middleware, openapi_config=None)

    assert {text.replace(":int", "") for text in unguarded(make(app))} == expected


# Flask and Quart.


def _flask_pay(order: int) -> str:
    return f"paid {order}"


class FlaskRefunds(MethodView):
    @REQUIRED
    def post(self) -> str:
        return ""


@pytest.mark.parametrize("framework", ["flask", "quart"])
def test_flask_and_quart_handlers_are_found(framework: str) -> None:
    def make() -> Any:
        app: Any = flask.Flask("shop") if framework == "flask" else quart.Quart("shop")
        app.add_url_rule("/api/pay/<int:order>", "pay", HOLD(_flask_pay), methods=["POST"])
        app.add_url_rule("/api/refunds", view_func=FlaskRefunds.as_view("refunds"))
        return app

    wrap = around_wsgi if framework == "flask" else around
    name = "wsgi_app" if framework == "flask" else "asgi_app"
    guarded, elsewhere, inside = make(), make(), make()
    setattr(guarded, name, wrap(getattr(guarded, name)))
    setattr(elsewhere, name, wrap(VisibleMiddleware(getattr(elsewhere, name)), paths=["/api/pay/"]))

    assert unguarded(make()) == named("no middleware", "POST /api/pay/<int:order>", "POST /api/refunds")
    assert unguarded(guarded) == unguarded(wrap(inside)) == set()
    assert unguarded(elsewhere) == named("outside paths=", "POST /api/refunds")


# Django.


@HOLD
def django_pay(_: HttpRequest) -> HttpResponse:
    return HttpResponse()


class DjangoRefunds(View):  # type: ignore[misc]  # Django has no types
    @REQUIRED
    def put(self, _: HttpRequest) -> HttpResponse:
        return HttpResponse()


@pytest.fixture
def django_urls() -> Iterator[None]:
    inner = [path("refunds", DjangoRefunds.as_view())]
    module = ModuleType("coverage_urls")
    module.urlpatterns = [path("api/pay", django_pay), path("api/v1/", include(inner))]  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    with override_settings(ROOT_URLCONF=module.__name__):
        clear_url_caches()
        yield
    clear_url_caches()
    del sys.modules[module.__name__]


@pytest.mark.usefixtures("django_urls")
@pytest.mark.parametrize(("make", "wrap"), [(get_asgi_application, around), (get_wsgi_application, around_wsgi)])
def test_django_views_are_found(make: Callable[[], Any], wrap: Callable[..., Any]) -> None:
    assert unguarded(make()) == named("no middleware", "POST /api/pay", "PUT /api/v1/refunds")
    assert unguarded(wrap(make())) == set()
    assert unguarded(wrap(make(), paths=["/api/v1/"])) == named("outside paths=", "POST /api/pay")


def test_an_application_without_readable_routes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django.urls")

    with pytest.raises(InvalidOption, match="cannot find the routes"):
        check_guarded(around(app_sending([])))


# When the application starts.


def started(app: Any) -> list[Message]:
    """Start and stop the application, and return the messages to the server."""
    messages: list[Message] = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    with contextlib.suppress(NotGuarded):
        asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    return sent


def documented() -> tuple[fastapi.FastAPI, list[str]]:
    lived: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        lived.append("started")
        yield
        lived.append("stopped")

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.post("/pay")
    @HOLD
    def pay() -> None: ...

    document_idempotency(app)
    document_idempotency(app, required=True)
    return app, lived


def test_an_application_with_an_unguarded_handler_does_not_start() -> None:
    app, lived = documented()

    (sent,) = started(app)

    assert sent["type"] == "lifespan.startup.failed"
    assert "POST /pay" in sent["message"]
    assert lived == []


def test_an_application_whose_handlers_are_guarded_starts_as_before() -> None:
    inside, lived_inside = documented()
    inside.add_middleware(IdempotencyMiddleware, store=MemoryStore(), metrics=False)
    outside, lived_outside = documented()

    for app in (inside, OpaqueMiddleware(around(OpaqueMiddleware(outside)))):
        assert [message["type"] for message in started(app)] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]
    assert lived_inside == lived_outside == ["started", "stopped"]


def test_an_outer_middleware_that_excludes_the_handler_does_not_count() -> None:
    app, _ = documented()

    (sent,) = started(around(app, paths=["/other"]))

    assert "outside paths=" in sent["message"]


# Requests that the middleware passes on are marked.


class KeyReaders:
    """Handlers that read the key of their operation."""

    def __init__(self) -> None:
        self.found: list[str | None] = []

    async def asgi(self, scope: Any, _receive: Receive, send: Send) -> None:
        self.found.append(idempotency(scope).key)
        await reply(send)

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.found.append(idempotency(environ).key)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b""]


@pytest.mark.parametrize(
    ("options", "request_of"),
    [
        ({}, {"key": None}),
        ({}, {"key": "k"}),
        ({}, {"key": "k", "method": "DELETE"}),
        ({"paths": ["/api/"]}, {"key": "k"}),
        ({"enabled": False}, {"key": "k"}),
    ],
    ids=["no-key", "key", "method", "path", "off"],
)
def test_every_request_that_is_passed_on_is_guarded(options: dict[str, Any], request_of: dict[str, Any]) -> None:
    readers = KeyReaders()
    middleware = around(readers.asgi, **options)
    run(send_request(middleware, **request_of))
    environ = {"REQUEST_METHOD": request_of.get("method", "POST")}
    ask_wsgi(around_wsgi(readers.wsgi, **options), key=request_of["key"], environ=environ)

    assert readers.found == [request_of["key"] if request_of == {"key": "k"} and not options else None] * 2


def test_a_request_that_runs_unprotected_because_its_store_is_down_still_counts_as_guarded() -> None:
    store = FaultyStore(MemoryStore())
    readers = KeyReaders()
    options: dict[str, Any] = {"on_store_error": "proceed", "store_seconds": 0, "metrics": False}
    with store.unavailable():
        run(send_request(IdempotencyMiddleware(readers.asgi, store, **options)))
        ask_wsgi(WSGIIdempotencyMiddleware(readers.wsgi, store, **options))

    assert readers.found == [None, None]


def test_a_webhook_without_a_middleware_is_named() -> None:
    async def hook(_request: Request) -> Response:
        return PlainTextResponse("")

    app = Starlette(
        routes=[Route("/hooks/stripe", idempotent(webhook=stripe(), required=False)(hook), methods=["POST"])]
    )

    with pytest.raises(NotGuarded, match="/hooks/stripe"):
        check_guarded(app)
    check_guarded(around(app))


def test_a_profile_that_checks_only_post_does_not_cover_put() -> None:
    async def replace(_request: Request) -> Response:
        return PlainTextResponse("")

    route = Route("/orders", REQUIRED(replace), methods=["PUT"])

    check_guarded(Starlette(routes=[route], middleware=[idempotency_middleware(profile="ucp")]))
    with pytest.raises(NotGuarded, match="not among methods="):
        check_guarded(Starlette(routes=[route], middleware=[idempotency_middleware(profile="acp")]))
