"""The demo under Django: the middleware wraps the ASGI or WSGI application.

A project has the same two lines in its `asgi.py` or `wsgi.py`. Here settings and urls are in the same file, so a
process can create only one application.
"""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_http_methods, require_POST
from examples.demo.orders import Refused, parse
from examples.demo.shop import Shop
from examples.demo.world import Reply, World

from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware, idempotency, idempotent

View = Callable[..., HttpResponseBase]

# Above the middleware's limit, so that only the middleware decides.
BODY_BYTES_MAX = 16 * 1024 * 1024

urlpatterns: list[URLPattern] = []


def make_asgi_app(world: World, store: str | None = None, **options: Any) -> ASGIHandler | IdempotencyMiddleware:
    """Create the demo, with the idempotency middleware if a store is given. `options` go to the middleware."""
    configure(world, store)
    app = get_asgi_application()
    return app if store is None else IdempotencyMiddleware(app, store=store, **options)


def make_wsgi_app(world: World, store: str | None = None, **options: Any) -> WSGIHandler | WSGIIdempotencyMiddleware:
    """Create the demo for WSGI servers."""
    configure(world, store)
    app = get_wsgi_application()
    return app if store is None else WSGIIdempotencyMiddleware(app, store=store, **options)


def configure(world: World, store: str | None) -> None:
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], DATA_UPLOAD_MAX_MEMORY_SIZE=BODY_BYTES_MAX)
    django.setup()
    urlpatterns.extend(path(route, refusing(view)) for route, view in views(world, Shop(store or "")).items())


def views(world: World, shop: Shop) -> dict[str, View]:
    def user(request: HttpRequest) -> str:
        return world.user(request.headers.get("Authorization"), request.COOKIES.get("session"))

    def act(request: HttpRequest, dweller: str) -> HttpResponse:
        return answer(world.act(user(request), dweller, parse(request.body)))

    def heartbeat(request: HttpRequest, dweller: str) -> HttpResponse:
        return answer(world.heartbeat(user(request), dweller, parse(request.body)))

    def tell(request: HttpRequest, dweller: str) -> StreamingHttpResponse:
        return stream(request, world.tell(user(request), dweller), "text/event-stream")

    def stories(request: HttpRequest) -> HttpResponse:
        if request.method == "GET":
            return answer(world.stories())
        return answer(world.write_story(user(request), parse(request.body)))

    def story(request: HttpRequest, story: str) -> HttpResponse:
        if request.method == "DELETE":
            return answer(world.delete_story(user(request), story))
        return answer(world.change_story(user(request), story, parse(request.body), whole=request.method == "PUT"))

    def propose(request: HttpRequest) -> HttpResponse:
        return answer(world.propose(user(request), parse(request.body)))

    def review(request: HttpRequest, kind: str, subject: str) -> HttpResponse:
        return answer(world.review(user(request), kind, subject, parse(request.body)))

    def register(request: HttpRequest) -> HttpResponse:
        return answer(world.register(parse(request.body)))

    def upload(request: HttpRequest) -> HttpResponse:
        file = request.FILES.get("file")
        if file is None:
            raise Refused(400, "badRequest", "send a file in a multipart field named file")
        return answer(world.upload(user(request), file.name, file.read()))

    # A letter cannot be taken back. If it is unknown whether it was sent, it is not sent again.
    @idempotent(on_crash="hold", required=True)
    def send_letter(request: HttpRequest) -> HttpResponse:
        return answer(world.send_letter(user(request), parse(request.body)))

    # Exactly once: the sale and its response commit in one transaction.
    def sell(request: HttpRequest) -> HttpResponse:
        buyer, order = user(request), parse(request.body)
        with shop.transaction() as connection:
            bound = idempotency(request).bind(connection)
            response = answer(shop.sell(connection, buyer, order))
            bound.settle(response)
        return response

    return {
        "api/dwellers/<dweller>/act": require_POST(act),
        "api/dwellers/<dweller>/heartbeat": require_POST(heartbeat),
        "api/dwellers/<dweller>/tell": require_POST(tell),
        "api/stories": require_http_methods(["GET", "POST"])(stories),
        "api/stories/<story>": require_http_methods(["PUT", "PATCH", "DELETE"])(story),
        "api/proposals": require_POST(propose),
        "api/review/<kind>/<subject>/feedback": require_POST(review),
        "api/auth/agent": require_POST(register),
        "api/uploads": require_POST(upload),
        "api/letters": require_POST(send_letter),
        "api/sales": require_POST(sell),
    }


def refusing(view: View) -> View:
    """Turn a refused order into a problem response."""

    @functools.wraps(view)
    def respond(request: HttpRequest, **arguments: str) -> HttpResponseBase:
        try:
            return view(request, **arguments)
        except Refused as error:
            return JsonResponse(error.problem, status=error.status, content_type="application/problem+json")

    return respond


def answer(reply: Reply) -> HttpResponse:
    if reply.content is None:
        return HttpResponse(status=reply.status)
    return JsonResponse(reply.content, status=reply.status)


def stream(request: HttpRequest, parts: Iterator[str], media_type: str) -> StreamingHttpResponse:
    """Make an async iterator: under ASGI, Django would consume a synchronous one before it sends anything."""
    if isinstance(request, ASGIRequest):
        return StreamingHttpResponse(on_threads(parts), content_type=media_type)
    return StreamingHttpResponse(parts, content_type=media_type)


async def on_threads(parts: Iterator[str]) -> AsyncIterator[str]:
    take = sync_to_async(lambda: next(parts, None), thread_sensitive=False)
    while (part := await take()) is not None:
        yield part
