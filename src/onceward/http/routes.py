"""Which handler a request will reach, asked of the framework that routes it. Nothing here imports a framework.

Litestar            the middleware runs behind the router: the scope names the handler
Starlette, FastAPI  the scope names the application, whose routes are asked in their order
Flask               the wrapped `wsgi_app` is a method of the application, which has a map of its URLs
Django              `django.urls.resolve`, once Django is loaded
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from onceward.http.rules import Rule, declared, rule_on

# Starlette's `Match.FULL`.
_FULL = 2


def asgi_rule(scope: Any) -> Rule | None:
    """The rule on the handler that this ASGI request will reach."""
    if not declared.rules:
        return None
    handler = scope.get("route_handler")
    if handler is not None:
        return rule_on(getattr(handler, "fn", None)) or rule_on(handler)
    app = scope.get("app")
    if app is not None and hasattr(app, "routes"):
        return _starlette_rule(app.routes, scope)
    return _django_rule(scope.get("path", "/").removeprefix(scope.get("root_path", "")), scope)


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
        return _view_rule(child.get("endpoint") or getattr(route, "endpoint", None), scope)
    return None


def wsgi_rule(app: Any, environ: Any) -> Rule | None:
    """The rule on the handler that this WSGI request will reach."""
    if not declared.rules:
        return None
    owner = getattr(app, "__self__", app)
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
