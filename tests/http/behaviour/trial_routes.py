"""The trials as routes of each framework: `/api/trials/<rule>/<name>` for every rule, and `/api/bound/<name>`; also
`/api/cancelled/<rule>/<name>` and `/api/silent/<rule>/<name>` if responses are ASGI applications.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import flask
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import path
from examples.demo import django_app
from fastapi import FastAPI
from litestar import HttpMethod, Litestar, post, route
from litestar.background_tasks import BackgroundTask as LitestarTask
from litestar.concurrency import sync_to_thread
from litestar.response import Response as LitestarResponse
from litestar.response import Stream
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tests.http.behaviour.trials import RULES, TrialHandlers, TrialResponse

from onceward.http import Rule, idempotency

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
# With these rules a handler is cancelled, or does not respond.
ENDLESS = ("plain", "hold")


def add_to_starlette(app: Starlette, trials: TrialHandlers) -> None:
    for name, rule in RULES.items():
        app.router.routes.append(
            Route(f"/api/trials/{name}/{{name}}", _starlette_endpoint(trials, rule), methods=METHODS)
        )
    app.router.routes.append(Route("/api/bound/{name}", _starlette_bound(trials), methods=METHODS))
    for name in ENDLESS:
        app.router.routes.append(
            Route(f"/api/cancelled/{name}/{{name}}", _starlette_cancelled(trials, RULES[name]), methods=METHODS)
        )
        app.router.routes.append(
            Route(f"/api/silent/{name}/{{name}}", _starlette_silent(trials, RULES[name]), methods=METHODS)
        )


def add_to_fastapi(app: FastAPI, trials: TrialHandlers) -> None:
    for name, rule in RULES.items():
        endpoint = _starlette_endpoint(trials, rule)
        app.add_api_route(f"/api/trials/{name}/{{name}}", endpoint, methods=METHODS, response_model=None)
    app.add_api_route("/api/bound/{name}", _starlette_bound(trials), methods=METHODS, response_model=None)
    for name in ENDLESS:
        cancelled, silent = _starlette_cancelled(trials, RULES[name]), _starlette_silent(trials, RULES[name])
        app.add_api_route(f"/api/cancelled/{name}/{{name}}", cancelled, methods=METHODS, response_model=None)
        app.add_api_route(f"/api/silent/{name}/{{name}}", silent, methods=METHODS, response_model=None)


def _starlette_endpoint(trials: TrialHandlers, rule: Rule) -> Any:
    async def trial(request: Request) -> Response:
        body, name = await request.body(), request.path_params["name"]
        return _starlette_response(await run_in_threadpool(trials.run, name, body, idempotency(request)))

    return rule(trial)


def _starlette_bound(trials: TrialHandlers) -> Any:
    async def bound(request: Request) -> Response:
        body, name = await request.body(), request.path_params["name"]
        return await run_in_threadpool(trials.run_bound, name, body, idempotency(request), _starlette_response)

    return bound


def _starlette_cancelled(trials: TrialHandlers, rule: Rule) -> Any:
    async def cancelled(request: Request) -> Response:
        await _cancel_first_run(trials, request.path_params["name"])
        return Response("done")

    return rule(cancelled)


def _starlette_silent(trials: TrialHandlers, rule: Rule) -> Any:
    async def silent(request: Request) -> Response:
        return StarletteSilence() if _is_first_run(trials, request.path_params["name"]) else Response("done")

    return rule(silent)


class StarletteSilence(Response):
    """Return a response that never starts."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        pass


def _is_first_run(trials: TrialHandlers, name: str) -> bool:
    trials.world.happen("trial", name)
    return trials.world.effects("trial", name) == 1


async def _cancel_first_run(trials: TrialHandlers, name: str) -> None:
    """Cancel the handler's task from outside in its first run."""
    if _is_first_run(trials, name):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.get_running_loop().create_future()


def _starlette_response(reply: TrialResponse) -> Response:
    after = BackgroundTask(reply.after[0]) if reply.after else None
    if isinstance(reply.body, bytes):
        return Response(reply.body, reply.status, reply.headers, reply.media_type, after)
    return StreamingResponse(reply.body, reply.status, reply.headers, reply.media_type, after)


def add_to_litestar(app: Litestar, trials: TrialHandlers) -> None:
    for name, rule in RULES.items():
        app.register(_litestar_handler(f"/api/trials/{name}/{{name:str}}", trials, rule))

    @route("/api/bound/{name:str}", http_method=[HttpMethod.POST], status_code=200)
    async def bound(request: Any, name: str) -> LitestarResponse[Any]:
        body, operation = await request.body(), idempotency(request)
        return await sync_to_thread(trials.run_bound, name, body, operation, _litestar_response)

    app.register(bound)
    for name in ENDLESS:
        app.register(_litestar_cancelled(f"/api/cancelled/{name}/{{name:str}}", trials, RULES[name]))
        app.register(_litestar_silent(f"/api/silent/{name}/{{name:str}}", trials, RULES[name]))


def _litestar_handler(address: str, trials: TrialHandlers, rule: Rule) -> Any:
    @route(address, http_method=[HttpMethod(name) for name in METHODS], status_code=200)
    @rule
    async def trial(request: Any, name: str) -> LitestarResponse[Any]:
        reply = await sync_to_thread(trials.run, name, await request.body(), idempotency(request))
        return _litestar_response(reply)

    return trial


def _litestar_cancelled(address: str, trials: TrialHandlers, rule: Rule) -> Any:
    @post(address, status_code=200)
    @rule
    async def cancelled(name: str) -> LitestarResponse[Any]:
        await _cancel_first_run(trials, name)
        return LitestarResponse(b"done", media_type="text/plain")

    return cancelled


def _litestar_silent(address: str, trials: TrialHandlers, rule: Rule) -> Any:
    @post(address, status_code=200)
    @rule
    async def silent(name: str) -> LitestarResponse[Any]:
        kind = LitestarSilence if _is_first_run(trials, name) else LitestarResponse
        return kind(b"done", media_type="text/plain")

    return silent


class LitestarSilence(LitestarResponse[Any]):
    """Return a response that never starts."""

    def to_asgi_response(self, *_: Any, **__: Any) -> Any:
        async def silence(scope: Any, receive: Any, send: Any) -> None:
            pass

        return silence


def _litestar_response(reply: TrialResponse) -> LitestarResponse[Any]:
    after = LitestarTask(sync_to_thread, reply.after[0]) if reply.after else None
    common: Any = {
        "status_code": reply.status,
        "headers": reply.headers,
        "media_type": reply.media_type,
        "background": after,
    }
    if isinstance(reply.body, bytes):
        return LitestarResponse(reply.body, **common)
    return Stream(reply.body, **common)


def add_to_flask(app: flask.Flask, trials: TrialHandlers) -> None:
    def trial(name: str) -> flask.Response:
        return _flask_response(trials.run(name, flask.request.get_data(), idempotency(flask.request)))

    def bound(name: str) -> flask.Response:
        return trials.run_bound(name, flask.request.get_data(), idempotency(flask.request), _flask_response)

    for name, rule in RULES.items():
        view = rule(lambda name: trial(name))  # noqa: PLW0108  # every rule stands on a function of its own
        app.add_url_rule(f"/api/trials/{name}/<name>", f"trial {name}", view, methods=METHODS)
    app.add_url_rule("/api/bound/<name>", "bound", bound, methods=METHODS)


def _flask_response(reply: TrialResponse) -> flask.Response:
    return flask.Response(reply.body, reply.status, reply.headers, content_type=reply.media_type)


def add_to_django(trials: TrialHandlers) -> None:
    def trial(request: HttpRequest, name: str) -> HttpResponseBase:
        return _django_response(request, trials.run(name, request.body, idempotency(request)))

    def bound(request: HttpRequest, name: str) -> HttpResponseBase:
        def respond(reply: TrialResponse) -> HttpResponseBase:
            return _django_response(request, reply)

        return trials.run_bound(name, request.body, idempotency(request), respond)

    for name, rule in RULES.items():
        view = rule(lambda request, name: trial(request, name))  # noqa: PLW0108  # as for Flask
        django_app.urlpatterns.append(path(f"api/trials/{name}/<name>", view))
    django_app.urlpatterns.append(path("api/bound/<name>", bound))


def _django_response(request: HttpRequest, reply: TrialResponse) -> HttpResponseBase:
    common: Any = {"status": reply.status, "headers": reply.headers, "content_type": reply.media_type}
    if isinstance(reply.body, bytes):
        return HttpResponse(reply.body, **common)
    if isinstance(request, ASGIRequest):
        return StreamingHttpResponse(_on_threads(reply.body), **common)
    return StreamingHttpResponse(reply.body, **common)


async def _on_threads(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    take = sync_to_async(lambda: next(parts, None), thread_sensitive=False)
    while (part := await take()) is not None:
        yield part
