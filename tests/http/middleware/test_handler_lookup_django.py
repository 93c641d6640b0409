"""The rules of Django's views, found through its own resolver, under ASGI and WSGI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.csrf import csrf_exempt
from werkzeug.test import EnvironBuilder

from onceward.http import Rule
from onceward.http.middleware.handler_lookup import asgi_rule, wsgi_rule

ONE, TWO = Rule(on_crash="hold"), Rule(store=False)


@ONE
def pay(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


@csrf_exempt  # type: ignore[untyped-decorator]  # Django has no types of its own
@TWO
def refund(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"{request.path} {number}")


@ONE
async def pay_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


class Payments(View):  # type: ignore[misc]
    @ONE
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.path)

    def put(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.path)


@TWO
@method_decorator(csrf_exempt, name="dispatch")
class Refunds(View):  # type: ignore[misc]
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.path)


urlpatterns = [
    path("pay", pay),
    path("async", pay_async),
    path("plain", plain),
    path("refunds/<int:number>", refund),
    path("größe", pay),
    path("shadow/<name>", plain),
    path("shadow/pay", pay),
    path("payments", csrf_exempt(Payments.as_view())),
    path("all-refunds", Refunds.as_view()),
    path("api/", include([path("pay", pay), path("deep/", include([path("pay", refund, {"number": 1})]))])),
]


@pytest.fixture(autouse=True)
def routed() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


cases = pytest.mark.parametrize(
    ("method", "where", "rule"),
    [
        ("POST", "/pay", ONE),
        ("POST", "/async", ONE),
        ("POST", "/plain", None),
        ("POST", "/nowhere", None),
        ("POST", "/pay/", None),
        ("POST", "/refunds/5", TWO),
        ("POST", "/refunds/x", None),
        ("POST", "/größe", ONE),
        ("POST", "/shadow/pay", None),
        ("POST", "/payments", ONE),
        ("PUT", "/payments", None),
        ("POST", "/all-refunds", TWO),
        ("POST", "/api/pay", ONE),
        ("POST", "/api/deep/pay", TWO),
        ("POST", "", None),
    ],
)


@cases
@pytest.mark.parametrize("root_path", ["", "/behind/a/proxy"])
def test_an_asgi_request_has_the_rule_of_its_view(method: str, where: str, rule: Rule | None, root_path: str) -> None:
    scope: dict[str, Any] = {"type": "http", "method": method, "path": root_path + where, "root_path": root_path}

    assert asgi_rule(scope) == rule


@cases
@pytest.mark.parametrize("script", ["", "/behind/a/proxy"])
def test_a_wsgi_request_has_the_rule_of_its_view(method: str, where: str, rule: Rule | None, script: str) -> None:
    environ = {**EnvironBuilder(where or "/", method=method).get_environ(), "SCRIPT_NAME": script}

    assert wsgi_rule(lambda environ, start: [], environ) == rule  # noqa: ARG005


def test_without_routes_of_its_own_django_has_no_rules() -> None:
    with override_settings(ROOT_URLCONF="nowhere.at.all"):
        assert asgi_rule({"type": "http", "method": "POST", "path": "/pay"}) is None
