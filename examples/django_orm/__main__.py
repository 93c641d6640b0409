"""Django with the ORM: a model's row and the response commit in one atomic block, under WSGI and under ASGI.

python examples/django_orm    pay under WSGI, send the request again under ASGI, and print the results

`views.py`, `models.py`, `asgi.py` and `wsgi.py` of a project are in this one file.
"""

import asyncio
import json

import django
import httpx
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware, idempotency

# The keys are in the database of the application, so that a view can commit its rows and its response together.
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["shop"], DATABASES=DATABASES)
django.setup()


class Payment(models.Model):  # type: ignore[misc]  # Django has no types
    """A payment for an order."""

    amount = models.IntegerField()

    class Meta:
        app_label = "shop"

    def __str__(self) -> str:
        return f"payment {self.id} of {self.amount}"


def pay(request: HttpRequest) -> JsonResponse:
    amount = json.loads(request.body)["amount"]
    with transaction.atomic():
        bound = idempotency(request).bind(connection)  # exactly once: the row and the response commit together
        payment = Payment.objects.create(amount=amount)
        response = JsonResponse({"payment": payment.id, "amount": payment.amount}, status=201)
        bound.settle(response)
    return response


urlpatterns = [path("payments", pay)]
asgi = IdempotencyMiddleware(get_asgi_application(), store="sqlite:///shop.db")  # asgi.py
wsgi = WSGIIdempotencyMiddleware(get_wsgi_application(), store="sqlite:///shop.db")  # wsgi.py
PAYMENTS, ORDER, KEY = "http://shop/payments", {"amount": 10}, {"Idempotency-Key": "order-42"}


def ask_wsgi() -> httpx.Response:
    with httpx.Client(transport=httpx.WSGITransport(wsgi)) as client:
        return client.post(PAYMENTS, json=ORDER, headers=KEY)


async def ask_asgi() -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi)) as client:
        return await client.post(PAYMENTS, json=ORDER, headers=KEY)


if __name__ == "__main__":
    with connection.schema_editor() as editor:  # a project has migrations
        editor.create_model(Payment)
    # Both use the same store, so the retry may go to the other server.
    for name, response in (("first:", ask_wsgi()), ("again:", asyncio.run(ask_asgi()))):
        print(
            name,
            response.status_code,
            response.json(),
            "replayed" if "Idempotent-Replayed" in response.headers else "fresh",
        )
    print("charged:", Payment.objects.count())
