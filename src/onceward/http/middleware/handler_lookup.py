"""Lookup of the handler that a request will reach, in the framework's router. Nothing here imports a framework.

Inside Litestar, the middleware runs behind the router, and the scope has the handler. In all other cases the lookup
follows `.app` from the wrapped application through the middlewares inwards, to the first application that has routes:

    Starlette, FastAPI  its routes, in order
    Litestar            its router
    Flask, Quart        its URL map; the wrapped `wsgi_app` or `asgi_app` is a method of the application

If a middleware on the way has no `.app`:

    Starlette, FastAPI  the scope has the application
    Django              `django.urls.resolve`, once Django is loaded
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from onceward.http.keyed.rules import Rule, declared, rule_on

# Starlette's `Match.FULL`.
_FULL = 2
# A chain of middlewares longer than this is a loop.
_MIDDLEWARES_MAX = 50


def asgi_rule(scope: Any, app: Any = None) -> Rule | None:
    """Return the rule on the handler that this ASGI request will reach. `app` is the wrapped application."""
    if not declared.rules:
        return None
    handler = scope.get("route_handler")
    rule = None if handler is None else _handler_rule(handler)
    if rule is not None:
        return rule
    router = _router(app)
    if router is None and handler is None:
        router = _router(scope.get("app"))
        if router is not None and scope.get("router") is getattr(router, "router", router):
            # The route is already chosen: this is a middleware of that route.
            return _view_rule(scope.get("endpoint"), scope)
    if router is None:
        return _django_rule(_path(scope), scope)
    return _router_rule(router, scope)


def _router(app: Any) -> Any:
    """Return the first application that has routes, from the outside in."""
    for _ in range(_MIDDLEWARES_MAX):
        if app is None:
            break
        app = unbound(app)
        if is_router(app):
            return app
        app = getattr(app, "app", None)
    return None


def unbound(app: Any) -> Any:
    """Return the application of a bound method, such as Flask's `app.wsgi_app`."""
    return getattr(app, "__self__", app)


def is_router(app: Any) -> bool:
    """Return whether the application has routes in a form that is known here."""
    routes = getattr(app, "routes", None)
    return (
        hasattr(app, "asgi_router")
        or hasattr(app, "view_functions")
        or (isinstance(routes, list | tuple) and bool(routes) and hasattr(routes[0], "matches"))
    )


def _router_rule(router: Any, scope: Any) -> Rule | None:
    try:
        if hasattr(router, "asgi_router"):
            path = "/" + "/".join(filter(None, _path(scope).split("/")))
            return _handler_rule(router.asgi_router.handle_routing(path=path, method=scope["method"])[1])
        if hasattr(router, "view_functions"):
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            urls = router.url_map.bind(host.decode("latin-1"))
            endpoint, _ = urls.match(_path(scope), method=scope["method"])
            return _view_rule(router.view_functions.get(endpoint), scope)
        # FastAPI may set a `root_path` that the server does not know.
        root_path = getattr(router, "root_path", "") or scope.get("root_path", "")
        return _starlette_rule(router.routes, {**scope, "root_path": root_path})
    except Exception:  # noqa: BLE001  # not found, wrong method, not a router: the application will report it itself
        return None


def _path(scope: Any) -> str:
    path: str = scope.get("path", "/")
    return path.removeprefix(scope.get("root_path", ""))


def _handler_rule(handler: Any) -> Rule | None:
    """Return the rule on a Litestar handler or on its function."""
    return rule_on(getattr(handler, "fn", None)) or rule_on(handler)


def flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield routes one by one. Newer versions of FastAPI have one route for an included router: expand it."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            yield from included()


def _starlette_rule(routes: Iterable[Any], scope: Any) -> Rule | None:
    for route in flat(routes):
        match, child = route.matches(scope)
        if match.value != _FULL:
            continue
        inner = getattr(route, "routes", None)
        if inner:
            return _starlette_rule(inner, {**scope, **child})
        endpoint = child.get("endpoint") or getattr(route, "endpoint", None)
        # The `routes` of a mount are empty if its application is wrapped in a middleware.
        router = None if inner is None else _router(endpoint)
        return _view_rule(endpoint, scope) if router is None else _router_rule(router, {**scope, **child})
    return None


def wsgi_rule(app: Any, environ: Any) -> Rule | None:
    """Return the rule on the handler that this WSGI request will reach."""
    if not declared.rules:
        return None
    owner = _router(app)
    url_map, views = getattr(owner, "url_map", None), getattr(owner, "view_functions", None)
    if url_map is None or views is None:
        # WSGI passes each byte of the path as one character.
        path = environ.get("PATH_INFO", "/").encode("latin-1").decode("utf-8", "replace")
        return _django_rule(path, environ)
    try:
        endpoint, _ = url_map.bind_to_environ(environ).match()
    except Exception:  # noqa: BLE001  # not found, wrong method, redirect: the application will report it itself
        return None
    return _view_rule(views.get(endpoint), environ)


def _view_rule(view: Any, request: Any) -> Rule | None:
    """Return the rule on a view, or on the method of a class-based view."""
    kind = view if isinstance(view, type) else getattr(view, "view_class", None) or getattr(view, "cls", None)
    if kind is None:
        return rule_on(view)
    method = str(request.get("REQUEST_METHOD") or request.get("method") or "").lower()
    found = rule_on(getattr(kind, method, None)) or rule_on(kind)
    return found if kind is view else rule_on(view) or found


def _django_rule(path: str, request: Any) -> Rule | None:
    urls = sys.modules.get("django.urls")
    settings = sys.modules.get("django.conf")
    if urls is None or settings is None or not settings.settings.configured:
        return None
    try:
        match = urls.resolve(path)
    except Exception:  # noqa: BLE001  # not found: the application will report it itself
        return None
    return _view_rule(match.func, request)
