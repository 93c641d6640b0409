"""Which handler a request will reach, asked of the framework that routes it. Nothing here imports a framework.

Litestar            inside, the middleware runs behind the router: the scope names the handler
everything else     the wrapped application is asked, through the middlewares between that say what they wrap (`.app`):
    Starlette, FastAPI  its routes, in their order
    Litestar            its router
    Flask, Quart        its map of URLs; the wrapped `wsgi_app` or `asgi_app` is a method of it
Starlette, FastAPI  behind a middleware that does not say what it wraps, the scope names the application
Django              `django.urls.resolve`, once Django is loaded
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from onceward.http.rules import Rule, declared, rule_on

# Starlette's `Match.FULL`.
_FULL = 2
# A chain of middlewares longer than this is a loop.
_MIDDLEWARES_MAX = 50


def asgi_rule(scope: Any, app: Any = None) -> Rule | None:
    """The rule on the handler that this ASGI request will reach. `app` is what the middleware wraps."""
    if not declared.rules:
        return None
    handler = scope.get("route_handler")
    said = None if handler is None else _handler_rule(handler)
    if said is not None:
        return said
    router = _router(app)
    if router is None and handler is None:
        router = _router(scope.get("app"))
        if router is not None and scope.get("router") is getattr(router, "router", router):
            # It has chosen its route already, and this is a middleware of that very route.
            return _view_rule(scope.get("endpoint"), scope)
    if router is None:
        return _django_rule(_path(scope), scope)
    return _asked(router, scope)


def _router(app: Any) -> Any:
    """The first application, from the outside in, that can be asked for its routes."""
    for _ in range(_MIDDLEWARES_MAX):
        if app is None:
            break
        app = unbound(app)
        if is_router(app):
            return app
        app = getattr(app, "app", None)
    return None


def unbound(app: Any) -> Any:
    """The application of a bound method, such as Flask's `app.wsgi_app`."""
    return getattr(app, "__self__", app)


def is_router(app: Any) -> bool:
    """Whether the application can be asked for its routes."""
    routes = getattr(app, "routes", None)
    return (
        hasattr(app, "asgi_router")
        or hasattr(app, "view_functions")
        or (isinstance(routes, list | tuple) and bool(routes) and hasattr(routes[0], "matches"))
    )


def _asked(router: Any, scope: Any) -> Rule | None:
    try:
        if hasattr(router, "asgi_router"):
            path = "/" + "/".join(filter(None, _path(scope).split("/")))
            return _handler_rule(router.asgi_router.handle_routing(path=path, method=scope["method"])[1])
        if hasattr(router, "view_functions"):
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            urls = router.url_map.bind(host.decode("latin-1"))
            endpoint, _ = urls.match(_path(scope), method=scope["method"])
            return _view_rule(router.view_functions.get(endpoint), scope)
        # FastAPI tells its routes this much more than the server does.
        root_path = getattr(router, "root_path", "") or scope.get("root_path", "")
        return _starlette_rule(router.routes, {**scope, "root_path": root_path})
    except Exception:  # noqa: BLE001  # not found, wrong method, a router that is none: the application says so itself
        return None


def _path(scope: Any) -> str:
    path: str = scope.get("path", "/")
    return path.removeprefix(scope.get("root_path", ""))


def _handler_rule(handler: Any) -> Rule | None:
    """Litestar's handlers have the function they were made of."""
    return rule_on(getattr(handler, "fn", None)) or rule_on(handler)


def flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Newer FastAPIs keep an included router as one route, and tell what its own routes come to under its prefix."""
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
        # A mount has routes, but knows them only of an application that nothing is wrapped around.
        router = None if inner is None else _router(endpoint)
        return _view_rule(endpoint, scope) if router is None else _asked(router, {**scope, **child})
    return None


def wsgi_rule(app: Any, environ: Any) -> Rule | None:
    """The rule on the handler that this WSGI request will reach."""
    if not declared.rules:
        return None
    owner = _router(app)
    url_map, views = getattr(owner, "url_map", None), getattr(owner, "view_functions", None)
    if url_map is None or views is None:
        # WSGI hands over each byte of the path as a character.
        path = environ.get("PATH_INFO", "/").encode("latin-1").decode("utf-8", "replace")
        return _django_rule(path, environ)
    try:
        endpoint, _ = url_map.bind_to_environ(environ).match()
    except Exception:  # noqa: BLE001  # not found, wrong method, redirect: the application says so itself
        return None
    return _view_rule(views.get(endpoint), environ)


def _view_rule(view: Any, request: Any) -> Rule | None:
    """A function has its rule on itself, a class-based view on its method or on itself."""
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
    except Exception:  # noqa: BLE001  # not found: the application says so itself
        return None
    return _view_rule(match.func, request)
