"""Django's own connection, bound by its views: with ATOMIC_REQUESTS, in sync and in async views, on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import override_settings
from django.urls import path
from tests.django_databases import django_database

from onceward import Ledger, open_ledger
from onceward.http import IdempotencyMiddleware, WSGIIdempotencyMiddleware, idempotency


class Sales:
    """The table of the application. Its next requests can be ordered to fail after they have settled."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.failures = 0

    def sell(self, request: HttpRequest) -> JsonResponse:
        bound = idempotency(request).bind(self.connection)
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO sales VALUES (%s)", ("tea",))
        response = JsonResponse({"sold": "tea"}, status=201)
        bound.settle(response)
        if self.failures:
            self.failures -= 1
            raise ValueError("the shop burnt down")
        return response

    def sold(self) -> int:
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM sales")
            return int(cursor.fetchone()[0])


sales = Sales()


def sell(request: HttpRequest) -> JsonResponse:
    return sales.sell(request)


async def sell_async(request: HttpRequest) -> JsonResponse:
    def in_a_block() -> JsonResponse:
        with transaction.atomic(using=sales.connection.alias):
            return sales.sell(request)

    response: JsonResponse = await sync_to_async(in_a_block)()
    return response


urlpatterns = [path("sell", sell), path("sell-async", sell_async)]


@pytest.fixture
def store(tmp_path: Path, view: str) -> Iterator[Ledger]:
    """Django itself refuses ATOMIC_REQUESTS for async views."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with django_database(url, ATOMIC_REQUESTS=view == "/sell") as connection, override_settings(ROOT_URLCONF=__name__):
        sales.connection, sales.failures = connection, 0
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE sales (item TEXT)")
        with open_ledger(url) as ledger:
            yield ledger
        connections.close_all()


def post_wsgi(store: Ledger, view: str) -> list[httpx.Response]:
    app = WSGIIdempotencyMiddleware(get_wsgi_application(), store=store)
    transport = httpx.WSGITransport(app)
    with httpx.Client(transport=transport, base_url="http://testserver") as client:
        return [client.post(view, headers={"Idempotency-Key": "k"}) for _ in range(3)]


async def post_asgi(store: Ledger, view: str) -> list[httpx.Response]:
    app = IdempotencyMiddleware(get_asgi_application(), store=store)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
        answers = [await client.post(view, headers={"Idempotency-Key": "k"}) for _ in range(3)]
    await sync_to_async(connections.close_all)()
    return answers


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize(("server", "view"), [("wsgi", "/sell"), ("asgi", "/sell"), ("asgi", "/sell-async")])
def test_a_sale_and_its_response_commit_with_the_request(store: Ledger, server: str, view: str, failures: int) -> None:
    """A view that fails after it settled rolls both back, and the retry sells."""
    sales.failures = failures

    answers = post_wsgi(store, view) if server == "wsgi" else asyncio.run(post_asgi(store, view))

    assert [answer.status_code for answer in answers] == ([500, 201, 201] if failures else [201] * 3)
    assert "idempotent-replayed" in answers[2].headers
    assert answers[1].content == answers[2].content
    assert sales.sold() == 1
