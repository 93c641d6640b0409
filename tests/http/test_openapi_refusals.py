"""The OpenAPI document shows the options of each route: key, format, echo, limits and profile."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from onceward.http import Rule, first_of, header, idempotent, json_field, query
from onceward.http.openapi import describe, document_idempotency
from onceward.http.webhooks import github, shopify, stripe


def operation_of(rule: Rule | None = None, **options: Any) -> dict[str, Any]:
    app = FastAPI(title="Shop")

    async def pay(request: Request) -> None: ...

    app.post("/pay")(pay if rule is None else rule(pay))
    document_idempotency(app, **options)
    document = app.openapi()
    assert not list(OPENAPI_31_VALIDATOR.iter_errors(document))
    found: dict[str, Any] = document["paths"]["/pay"]["post"]
    return found


def parameters(operation: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(one["in"], one["name"], one["required"]) for one in operation.get("parameters", ())]


def test_the_source_of_the_key_is_a_parameter() -> None:
    assert parameters(operation_of(key=header("Webhook-Id"), required=True)) == [("header", "Webhook-Id", True)]
    assert parameters(operation_of(Rule(key=query("delivery")))) == [("query", "delivery", False)]
    assert parameters(operation_of(Rule(key=first_of(header("A"), query("b")), required=True))) == [
        ("header", "A", False),
        ("query", "b", False),
    ]
    assert parameters(operation_of(Rule(webhook=shopify()))) == [
        ("header", "X-Shopify-Event-Id", True),
        ("header", "X-Shopify-Topic", True),
    ]


def test_a_key_in_the_body_is_shown_by_the_extension() -> None:
    operation = operation_of(Rule(key=json_field("event.id"), compare="json", scope="endpoint"))

    assert parameters(operation) == []
    assert operation["x-idempotency"] == {
        "key": "the JSON field event.id",
        "compare": "json",
        "scope": "endpoint",
    }


def test_a_route_with_the_defaults_has_no_extension() -> None:
    assert "x-idempotency" not in operation_of()


def test_the_refusals_are_shown_in_the_format_and_with_the_statuses_of_the_profile() -> None:
    operation = operation_of(profile="ucp")

    examples = operation["responses"]["409"]["content"]["application/json"]["examples"]
    assert examples["mismatch"]["value"]["code"] == "idempotency_conflict"
    assert examples["busy"]["value"]["code"] == "idempotency_in_flight"
    assert "different request" not in operation["responses"].get("422", {}).get("description", "")
    assert operation["x-idempotency"]["profile"] == "ucp"
    assert "Retry-After" in operation["responses"]["503"]["headers"]


def test_the_echo_is_a_header_of_every_response() -> None:
    responses = operation_of(profile="acp")["responses"]

    assert all("Idempotency-Key" in response["headers"] for response in responses.values())
    assert "idempotency_key_required" in str(responses["400"])


def test_a_limit_and_a_refused_key_are_shown() -> None:
    responses = operation_of(Rule(max_keys_per_principal=5, after_retention="refuse"))["responses"]

    assert "Retry-After" in responses["429"]["headers"]
    assert "expired" in responses["409"]["content"]["application/problem+json"]["examples"]
    assert "429" not in operation_of()["responses"]


def test_a_webhook_has_no_conflict_and_only_its_success_is_replayed() -> None:
    operation = operation_of(Rule(webhook=github()))

    assert "422" not in operation["responses"]
    assert "Idempotent-Replayed" in operation["responses"]["200"]["headers"]
    assert operation["x-idempotency"]["webhook"] == "github"
    assert parameters(operation_of(Rule(webhook=stripe()))) == []


def test_describing_twice_changes_nothing() -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {"/a": {"post": {"responses": {"200": {"description": "ok"}}}, "put": {"responses": {}}}},
    }

    once = describe(document, profile="acp", max_keys_per_principal=3)

    assert describe(once, profile="acp", max_keys_per_principal=3) == once
    assert once["paths"]["/a"]["put"] == {"responses": {}}, "the profile checks only POST"


def test_a_route_wins_over_the_options_of_the_document() -> None:
    operation = operation_of(idempotent(problem="problem_json", echo=False), profile="acp")

    assert "application/problem+json" in operation["responses"]["422"]["content"]
    assert "Idempotency-Key" not in operation["responses"]["200"].get("headers", {})
