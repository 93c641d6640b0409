"""Django: the lines for `asgi.py` and `wsgi.py`. Settings and urls are here, too, to have everything in one file."""

import asyncio
import json

import django
import httpx
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware, idempotency

# The keys are in the database of the application, so that a view can commit its rows and its response together.
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "keys.db"}}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["shop"], DATABASES=DATABASES)
django.setup()


def pay(request: HttpRequest) -> JsonResponse:
    amount = json.loads(request.body)["amount"]
    with transaction.atomic(), connection.cursor() as cursor:
        bound = idempotency(request).bind(connection)  # exactly once: the row and the response commit together
        cursor.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING id", [amount])
        response = JsonResponse({"payment": cursor.fetchone()[0], "amount": amount}, status=201)
        bound.settle(response)
    return response


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
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE payments (id INTEGER PRIMARY KEY, amount INTEGER)")
    # Both use the same store, so the retry may go to the other server.
    for name, response in (("first:", ask_wsgi()), ("again:", asyncio.run(ask_asgi()))):
        print(name, response.status_code, response.json(), response.headers.get("Idempotent-Replayed", "fresh"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM payments")
        print("charged:", cursor.fetchone()[0])
