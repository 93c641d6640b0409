"""Search for handlers whose rules no middleware enforces: `check_guarded(app)`.

`@idempotent` only marks a handler. A rule that must not be missed (`required=True`, `on_crash="hold"`, `webhook=`) has
no effect if the middleware is missing, or does not check the handler's path or method. The search walks through an
application from the outside in, as a request does, and compares its routes with the middlewares around them. Nothing
here imports a framework.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onceward.core.record import record
from onceward.errors import InvalidOption, NotGuarded
from onceward.http.keyed.admission import Admission
from onceward.http.keyed.options import METHODS
from onceward.http.keyed.profiles import profile_options
from onceward.http.keyed.rules import HOLD, Rule, rule_on
from onceward.http.middleware.asgi import IdempotencyMiddleware
from onceward.http.middleware.handler_lookup import flat, is_router, unbound
from onceward.http.middleware.wsgi import WSGIIdempotencyMiddleware

# A chain of middlewares longer than this is a loop.
_MIDDLEWARES_MAX = 50
# Safe methods change nothing and need no key.
_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_VERBS = ("get", "post", "put", "patch", "delete")


@record(frozen=True, slots=True)
class Coverage:
    """The methods and paths that one middleware checks."""

    methods: Collection[str]
    paths: tuple[str, ...]

    def covers(self, method: str, path: str) -> bool:
        return method in self.methods and self.covers_path(path)

    def covers_path(self, path: str) -> bool:
        return not self.paths or path.startswith(self.paths)


@record(frozen=True, slots=True)
class Handler:
    """One handler and the middlewares around it."""

    view: Any
    rule: Rule
    path: str
    methods: tuple[str, ...]
    around: tuple[Coverage, ...]

    @property
    def problem(self) -> str:
        """The reason why the rule is not enforced; "" if it is."""
        needs = [method for method in self.methods if method not in _SAFE] or list(self.methods)
        missed = [method for method in needs if not any(one.covers(method, self.path) for one in self.around)]
        if not missed:
            return ""
        if not self.around:
            why = "no middleware"
        elif not any(one.covers_path(self.path) for one in self.around):
            why = "outside paths="
        else:
            why = "not among methods="
        name = getattr(self.view, "__qualname__", None) or type(self.view).__qualname__
        return f"{'/'.join(sorted(missed))} {self.path} ({getattr(self.view, '__module__', '?')}.{name}): {why}"


def check_guarded(app: Any) -> None:
    """Check that a middleware enforces the rules of all handlers.

    Only rules with `required=True`, `on_crash="hold"` or `webhook=` are checked. A middleware with `enabled=False` counts as
    present: it was turned off on purpose.

    Args:
        app: The application that the server runs, of Starlette, FastAPI, Litestar, Quart, Flask or Django.

    Raises:
        NotGuarded: Handlers declare rules that no middleware enforces. The message lists all of them.
        InvalidOption: The routes of the application cannot be found.
    """
    check_guarded_inside(app, ())


def check_guarded_inside(app: Any, around: Iterable[Any]) -> None:
    """Check an application like `check_guarded`, with these middlewares around it."""
    outer = tuple(_of_admission(middleware._admission) for middleware in around)  # noqa: SLF001  # same package
    problems = sorted({problem for handler in _handlers(app, "", outer) if (problem := handler.problem)})
    if problems:
        raise NotGuarded(
            f"{len(problems)} handler(s) declare idempotency rules that no middleware enforces: {'; '.join(problems)}. "
            "Add IdempotencyMiddleware (or WSGIIdempotencyMiddleware) around them, with paths= and methods= that "
            "include them"
        )


def _of_admission(admission: Admission) -> Coverage:
    return Coverage(admission.methods, admission.paths)


def _of_options(options: Mapping[str, Any]) -> Coverage:
    """Return the coverage of a middleware that its application has not created yet."""
    preset = profile_options(options["profile"]) if options.get("profile") else {}
    methods = options.get("methods") or preset.get("methods") or METHODS
    return Coverage(frozenset(map(str.upper, methods)), tuple(options.get("paths") or ()))


def _handlers(app: Any, prefix: str, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    layers, router = _walk(app)
    around += layers
    if router is None:
        yield from _django(app, around)
    elif hasattr(router, "asgi_router"):
        yield from _litestar(router.asgi_router, prefix, around)
    elif hasattr(router, "view_functions"):
        yield from _flask(router, prefix, around)
    else:
        yield from _starlette(router, prefix, around)


def _walk(app: Any) -> tuple[tuple[Coverage, ...], Any]:
    """Return the middlewares from here inwards, and the first application that has routes, or None."""
    found: list[Coverage] = []
    for _ in range(_MIDDLEWARES_MAX):
        if app is None:
            break
        app = unbound(app)
        if isinstance(app, IdempotencyMiddleware | WSGIIdempotencyMiddleware):
            found.append(_of_admission(app._admission))  # noqa: SLF001  # same package
        elif is_router(app):
            return tuple(found), app
        app = getattr(app, "app", None)
    return tuple(found), None


def _starlette(router: Any, prefix: str, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    for added in getattr(router, "user_middleware", ()):
        if isinstance(added.cls, type) and issubclass(added.cls, IdempotencyMiddleware):
            around += (_of_options(added.kwargs),)
    around += _walk(getattr(router, "middleware_stack", None))[0]
    for route in flat(router.routes):
        if hasattr(route, "routes"):  # a mount, or a host, which has no path
            inner = getattr(route, "app", None)
            if _walk(inner)[1] is not None:
                yield from _handlers(inner, prefix + getattr(route, "path", ""), around)
        elif (view := getattr(route, "endpoint", None)) is not None:
            path = prefix + getattr(route, "path_format", getattr(route, "path", ""))
            own = _walk(getattr(route, "app", None))[0]
            yield from _of_view(view, path, getattr(route, "methods", None), around + own)


def _litestar(router: Any, prefix: str, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    nodes = [router.root_route_map_node]
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        for method, (stack, handler) in node.asgi_handlers.items():
            rule = rule_on(getattr(handler, "fn", None)) or rule_on(handler)
            if rule is not None and _must_be_enforced(rule):
                view = getattr(handler, "fn", handler)
                yield Handler(view, rule, prefix + node.path_template, (str(method),), around + _walk(stack)[0])


def _flask(router: Any, prefix: str, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    for name in ("wsgi_app", "asgi_app"):
        around += _walk(getattr(router, name, None))[0]
    for route in router.url_map.iter_rules():
        view = router.view_functions.get(route.endpoint)
        if view is not None:
            yield from _of_view(view, prefix + route.rule, route.methods, around)


def _django(app: Any, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    urls, conf = sys.modules.get("django.urls"), sys.modules.get("django.conf")
    if urls is None or conf is None or not conf.settings.configured:
        raise InvalidOption(
            f"check_guarded cannot find the routes of {app!r}; pass an application of Starlette, FastAPI, Litestar, "
            "Quart, Flask or Django"
        )
    yield from _django_patterns(urls.get_resolver().url_patterns, "/", around)


def _django_patterns(patterns: Sequence[Any], prefix: str, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    for pattern in patterns:
        path = prefix + str(pattern.pattern).removeprefix("^")
        if hasattr(pattern, "url_patterns"):
            yield from _django_patterns(pattern.url_patterns, path, around)
        else:
            yield from _of_view(pattern.callback, path, None, around)


def _of_view(view: Any, path: str, methods: Iterable[str] | None, around: tuple[Coverage, ...]) -> Iterator[Handler]:
    """Yield the handlers of a view with a rule on it, or on the methods of a class-based view."""
    kind = view if isinstance(view, type) else getattr(view, "view_class", None) or getattr(view, "cls", None)
    view_rule = rule_on(view)
    if kind is None or (view_rule is not None and kind is not view):
        verbs = {tuple(methods or ("POST",)): view_rule}  # a Django view does not declare its methods
    else:
        known = [verb for verb in _VERBS if hasattr(kind, verb) and (methods is None or verb.upper() in methods)]
        verbs = {(verb.upper(),): rule_on(getattr(kind, verb)) or rule_on(kind) for verb in known}
    for names, rule in verbs.items():
        if rule is not None and _must_be_enforced(rule):
            yield Handler(view, rule, path, names, around)


def _must_be_enforced(rule: Rule) -> bool:
    return bool(rule.required) or rule.on_crash == HOLD or rule.webhook is not None
