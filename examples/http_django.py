"""Django: the lines for `asgi.py` and `wsgi.py`. Settings and urls are here, too, to have everything in one file."""

import asyncio
import json

import django
import httpx
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["shop"])
django.setup()
charged: list[int] = []


def pay(request: HttpRequest) -> JsonResponse:
    charged.append(json.loads(request.body)["amount"])  # call the payment provider here
    return JsonResponse({"payment": len(charged), "amount": charged[-1]}, status=201)


urlpatterns = [path("payments", pay)]
asgi = IdempotencyMiddleware(get_asgi_application(), store="sqlite:///keys.db")  # asgi.py
wsgi = WSGIIdempotencyMiddleware(get_wsgi_application(), store="sqlite:///keys.db")  # wsgi.py
PAYMENTS, ORDER, KEY = "http://shop/payments", {"amount": 10}, {"Idempotency-Key": "order-42"}


def ask_wsgi() -> httpx.Response:
    with httpx.Client(transport=httpx.WSGITransport(wsgi)) as client:
        return client.post(PAYMENTS, json=ORDER, headers=KEY)


async def ask_asgi() -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi)) as client:
        return await client.post(PAYMENTS, json=ORDER, headers=KEY)


if __name__ == "__main__":
    # Both use the same store, so the retry may go to the other server.
    for name, response in (("first:", ask_wsgi()), ("again:", asyncio.run(ask_asgi()))):
        print(name, response.status_code, response.json(), response.headers.get("Idempotent-Replayed", "fresh"))
    print("charged:", len(charged))
