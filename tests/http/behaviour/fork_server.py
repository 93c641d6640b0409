"""A process with every framework imported that forks servers: each starts within milliseconds instead of seconds.

Run as `python -m tests.http.behaviour.fork_server SOCKET`, the number of an inherited socket. A request on it is how to serve (JSON)
with two descriptors: a listening socket, and the file to log to; the answer is the server's process id.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import uvicorn
from examples.demo import django_app, fastapi_app, flask_app, litestar_app, quart_app, starlette_app
from examples.demo.orders import Refused
from examples.demo.shop import Shop
from examples.demo.world import World
from gunicorn.app.base import BaseApplication
from gunicorn.workers import gthread
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from tests.http.behaviour import hook_routes, trial_routes
from tests.http.behaviour.demo_server import WSGI
from tests.http.behaviour.trials import Gates, TrialHandlers

# The drivers, which a server would otherwise import on first use.
from onceward.store.postgres import store as postgres
from onceward.store.redis import store as redis
from onceward.store.sqlite import store as sqlite

PR_SET_PDEATHSIG = 1
# A handler that still runs then is cancelled.
GRACE_SECONDS = 5
# More than any test has requests under way.
THREADS = 40

_imported = (postgres, redis, sqlite, gthread)


def make_app(how: dict[str, Any], world: World, gates: Gates) -> Any:
    """The demo under one framework, with the trials, as a server may call it."""
    app = make_bare_app(how, world, gates)
    if not how["authenticated"]:
        return app
    if how["framework"] in WSGI:
        return authenticated_wsgi(app, world)
    return AuthenticationMiddleware(app, backend=TokenBackend(world), on_error=_unauthorized)


def make_bare_app(how: dict[str, Any], world: World, gates: Gates) -> Any:
    """The application as the demo makes it, without a wrapper."""
    store, options = how["store"], _options(how["options"], world)
    trials = TrialHandlers(world, gates, Shop(store))
    match how["framework"]:
        case "starlette":
            starlette = starlette_app.make_app(world, store, **options)
            trial_routes.add_to_starlette(starlette, trials)
            if how.get("hooks"):
                hook_routes.add_to_starlette(starlette, trials)
            return starlette
        case "fastapi":
            fastapi = fastapi_app.make_app(world, store, **options)
            trial_routes.add_to_fastapi(fastapi, trials)
            return fastapi
        case "litestar":
            litestar = litestar_app.make_app(world, store, **options)
            trial_routes.add_to_litestar(litestar, trials)
            return litestar
        case "quart":
            return quart_app.make_app(world, store, **options)
        case "flask":
            flask = flask_app.make_app(world, store, **options)
            trial_routes.add_to_flask(flask, trials)
            if how.get("hooks"):
                hook_routes.add_to_flask(flask, trials)
            return flask
        case "django-asgi":
            django = django_app.make_asgi_app(world, store, **options)
            trial_routes.add_to_django(trials)
            return django
        case "django-wsgi":
            django_wsgi = django_app.make_wsgi_app(world, store, **options)
            trial_routes.add_to_django(trials)
            return django_wsgi
        case other:
            raise ValueError(other)


def _options(given: dict[str, Any], world: World) -> dict[str, Any]:
    """Return the options. Functions are given by name."""
    options = dict(given)
    if options.get("principal") == "user":
        options["principal"] = _principal(world)
    if "keep_status" in options:
        kept = frozenset(options["keep_status"])
        options["keep_status"] = lambda status: status in kept
    if "encryption_keys" in options:
        options["encryption_keys"] = [bytes.fromhex(key) for key in options["encryption_keys"]]
    return options


def _principal(world: World) -> Callable[[Any], str | None]:
    """The user behind a token, from an ASGI scope or a WSGI environ alike."""

    def principal(scope: Any) -> str | None:
        headers = dict(scope.get("headers", ()))
        authorization = scope.get("HTTP_AUTHORIZATION") or headers.get(b"authorization", b"").decode()
        cookie = SimpleCookie(scope.get("HTTP_COOKIE") or headers.get(b"cookie", b"").decode())
        session = cookie["session"].value if "session" in cookie else None
        return world.user(authorization, session) if authorization or session else None

    return principal


class TokenBackend(AuthenticationBackend):
    """Authentication outside the idempotency middleware: it sees the user in the scope."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        if "authorization" not in conn.headers:
            return None
        try:
            return AuthCredentials(), SimpleUser(self._world.user(conn.headers["authorization"], None))
        except Refused as error:
            raise AuthenticationError("no such token") from error


def _unauthorized(_: HTTPConnection, __: Exception) -> Response:
    return Response(status_code=401)


def authenticated_wsgi(app: Any, world: World) -> Any:
    """The same under WSGI: the user is in the environ."""

    def authenticated(environ: dict[str, Any], start_response: Any) -> Any:
        try:
            if "HTTP_AUTHORIZATION" in environ:
                environ["REMOTE_USER"] = world.user(environ["HTTP_AUTHORIZATION"], None)
        except Refused:
            start_response("401 Unauthorized", [("Content-Length", "0")])
            return []
        return app(environ, start_response)

    return authenticated


def serve(how: dict[str, Any], listening: socket.socket) -> None:
    folder = Path(how["folder"])
    world, gates = World(folder / "world.db"), Gates(folder)
    if how["framework"] in WSGI:
        Gunicorn(lambda: make_app(how, world, gates), listening.fileno()).run()
    else:
        config = uvicorn.Config(make_app(how, world, gates), log_config=None, timeout_graceful_shutdown=GRACE_SECONDS)
        uvicorn.Server(config).run(sockets=[listening])


class Gunicorn(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    """Gunicorn with threads, on a socket that already listens. The application is made in the worker."""

    def __init__(self, make: Callable[[], Any], listening: int) -> None:
        self._make = make
        self._settings = {
            "bind": f"fd://{listening}",
            "worker_class": "gthread",
            "threads": THREADS,
            "post_fork": lambda _, __: _die_with_parent(),
            "control_socket_disable": True,
        }
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return self._make()


class WithFields(logging.Formatter):
    """Write one line for each event: its message and its fields."""

    _usual = frozenset(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in self._usual}
        fields.pop("message", None)
        return f"{record.levelname} {super().format(record)} {fields}"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become_server(how: dict[str, Any], listening: int, log: int) -> None:
    os.setsid()
    _die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(WithFields())
    serve(how, socket.socket(fileno=listening))
    sys.exit()


def main(number: int) -> None:
    requests = socket.socket(fileno=number)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead vanish at once
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 65536, 2)
        if not message:
            return
        child = os.fork()
        if child == 0:
            requests.close()
            _become_server(json.loads(message), *descriptors)
        requests.send(str(child).encode())
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]))
