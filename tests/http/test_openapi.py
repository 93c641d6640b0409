"""The OpenAPI document describes what the middleware adds, and keeps everything that the application declares."""

from __future__ import annotations

import asyncio
import copy
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Header
from litestar import Litestar, post
from pydantic import BaseModel
from schemathesis.specs.openapi.definitions import OPENAPI_30_VALIDATOR, OPENAPI_31_VALIDATOR
from starlette.applications import Starlette

from onceward.errors import InvalidOption
from onceward.http.keyed.rules import Rule, idempotent
from onceward.http.openapi import describe, document_idempotency

PROBLEM = {"$ref": "#/components/schemas/Problem"}
NOWHERE = {"$ref": "#/components/responses/Nowhere"}
OURS = {"400", "409", "413", "422", "503"}


class Order(BaseModel):
    item: str
    amount: int = 1


def shop() -> FastAPI:
    app = FastAPI(title="Shop")

    @app.post("/orders", status_code=201)
    def order(order: Order) -> Order:
        return order

    @app.put("/orders/{number}")
    @idempotent(required=True)
    def replace(number: int, order: Order) -> None: ...

    @app.get("/orders")
    def orders() -> list[Order]:
        return []

    @app.delete("/orders/{number}", status_code=204)
    def cancel(number: int) -> None: ...

    return app


def document_of(app: FastAPI, **options: Any) -> dict[str, Any]:
    document_idempotency(app, **options)
    return app.openapi()


def key_parameters(operation: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in operation.get("parameters", []) if each["name"].lower() == "idempotency-key"]


def is_described(operation: dict[str, Any]) -> bool:
    return bool(key_parameters(operation)) and operation["responses"].keys() >= OURS


def with_responses(declared: dict[str, Any], **components: Any) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "Written by hand", "version": "1"},
        "paths": {"/orders": {"post": {"responses": declared}}},
        "components": components,
    }


def described_responses(responses: dict[str, Any], **components: Any) -> dict[str, Any]:
    described: dict[str, Any] = describe(with_responses(responses, **components))["paths"]["/orders"]["post"][
        "responses"
    ]
    return described


# Additions to the document.


def test_the_key_is_a_header_of_visible_ascii() -> None:
    [parameter] = key_parameters(document_of(shop())["paths"]["/orders"]["post"])

    assert (parameter["name"], parameter["in"], parameter["required"]) == ("Idempotency-Key", "header", False)
    assert parameter["schema"] == {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    assert "retry" in parameter["description"]


def test_the_key_is_required_if_the_rule_of_the_handler_says_so() -> None:
    [parameter] = key_parameters(document_of(shop())["paths"]["/orders/{number}"]["put"])

    assert parameter["required"] is True


def test_stored_responses_may_be_replays() -> None:
    responses = document_of(shop())["paths"]["/orders"]["post"]["responses"]

    assert "Idempotent-Replayed" in responses["201"]["headers"]
    assert "Idempotent-Replayed" in responses["422"]["headers"], "the application's own 422 is kept"
    assert all("Idempotent-Replayed" not in responses[status].get("headers", {}) for status in OURS - {"422"})


def test_problem_responses_share_one_schema() -> None:
    document = document_of(shop())
    responses = document["paths"]["/orders"]["post"]["responses"]

    assert all(responses[status]["content"]["application/problem+json"]["schema"] == PROBLEM for status in OURS)
    assert "code" in document["components"]["schemas"]["Problem"]["required"]
    assert "Retry-After" in responses["409"]["headers"]
    assert "Retry-After" in responses["503"]["headers"]


def test_the_examples_are_real_responses() -> None:
    responses = document_of(shop())["paths"]["/orders"]["post"]["responses"]

    examples = responses["409"]["content"]["application/problem+json"]["examples"]
    assert examples.keys() == {"conflict", "in-doubt", "outcome-not-kept", "principal-changed"}
    assert examples["conflict"]["value"]["detail"] == "Request is being processed"


def test_methods_without_a_check_are_unchanged() -> None:
    plain, described = shop().openapi()["paths"], document_of(shop())["paths"]

    assert described["/orders"]["get"] == plain["/orders"]["get"]
    assert described["/orders/{number}"]["delete"] == plain["/orders/{number}"]["delete"]


def test_the_options_of_the_middleware_choose_what_is_described() -> None:
    chosen = describe(shop().openapi(), methods=["delete"], paths=["/orders/"], required=True)["paths"]

    assert is_described(chosen["/orders/{number}"]["delete"])
    assert key_parameters(chosen["/orders/{number}"]["delete"])[0]["required"] is True
    assert not is_described(chosen["/orders/{number}"]["put"])
    assert not is_described(chosen["/orders"]["post"])


def test_a_document_without_such_methods_is_unchanged() -> None:
    document = describe(shop().openapi(), methods=[])

    assert document == shop().openapi()


def test_rules_by_path_come_after_those_of_the_handler() -> None:
    rules = {"/orders/{number}": Rule(required=False), "/orders": Rule(required=True)}
    paths = document_of(shop(), rules=rules)["paths"]

    assert key_parameters(paths["/orders"]["post"])[0]["required"] is True
    assert key_parameters(paths["/orders/{number}"]["put"])[0]["required"] is True
    assert key_parameters(describe(shop().openapi(), rules=rules)["paths"]["/orders"]["post"])[0]["required"] is True


def test_a_route_that_stores_no_responses_promises_no_replays() -> None:
    paths = document_of(shop(), rules={"/orders": Rule(store=False)})["paths"]

    assert "headers" not in paths["/orders"]["post"]["responses"]["201"]
    assert is_described(paths["/orders"]["post"])


def test_other_statuses_may_be_stored() -> None:
    responses = describe(with_responses({"200": {"description": "Fine"}, "202": {"description": "Later"}}),
                         keep_status=lambda status: status == 202)["paths"]["/orders"]["post"]["responses"]  # fmt: skip

    assert "headers" not in responses["200"]
    assert "Idempotent-Replayed" in responses["202"]["headers"]


@pytest.mark.parametrize(("status", "replayed"), [("2XX", True), ("4XX", True), ("5XX", False), ("default", True),
                                                  ("302", True), ("401", False), ("429", False), ("500", False)])  # fmt: skip
def test_the_replay_header_is_on_responses_that_can_be_stored(status: str, replayed: bool) -> None:
    responses = described_responses({status: {"description": "An answer"}})

    assert ("Idempotent-Replayed" in responses[status].get("headers", {})) is replayed


# Declarations of the application stay.


def test_fastapis_validation_error_stays_beside_the_reused_key() -> None:
    unprocessable = document_of(shop())["paths"]["/orders"]["post"]["responses"]["422"]

    assert unprocessable["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/HTTPValidationError"
    }
    assert unprocessable["content"]["application/problem+json"]["schema"] == PROBLEM
    assert unprocessable["description"].startswith("Validation Error. The idempotency key was already used")


def test_a_declared_response_is_extended_and_never_replaced() -> None:
    own = {
        "description": "Sold out",
        "headers": {"retry-after": {"schema": {"type": "string"}}},
        "content": {"application/problem+json": {"schema": {"type": "object"}}, "text/plain": {}},
    }

    conflict = described_responses({"409": own})["409"]
    assert conflict["headers"] == own["headers"]
    assert conflict["content"] == own["content"]
    assert conflict["description"].startswith("Sold out. A request with this key")


def test_a_shared_response_is_copied_before_it_is_changed() -> None:
    document = with_responses(
        {"404": {"$ref": "#/components/responses/Missing"}, "409": {"$ref": "elsewhere.json#/Taken"}, "410": NOWHERE},
        responses={"Missing": {"description": "Not there"}},
    )

    described = describe(document)
    responses = described["paths"]["/orders"]["post"]["responses"]
    assert responses["404"]["description"] == "Not there"
    assert "Idempotent-Replayed" in responses["404"]["headers"]
    assert described["components"]["responses"] == document["components"]["responses"]
    assert (responses["409"], responses["410"]) == ({"$ref": "elsewhere.json#/Taken"}, NOWHERE)


def test_a_handler_that_declares_the_header_itself_keeps_its_declaration() -> None:
    app = FastAPI()

    @app.post("/free")
    def free(idempotency_key: Annotated[str | None, Header(description="Ours")] = None) -> None: ...

    @app.post("/must")
    @idempotent(required=True)
    def must(idempotency_key: Annotated[str | None, Header(description="Ours")] = None) -> None: ...

    paths = document_of(app)["paths"]
    [free_key], [must_key] = (key_parameters(paths[path]["post"]) for path in ("/free", "/must"))
    assert (free_key["description"], free_key["required"]) == ("Ours", False)
    assert (must_key["description"], must_key["required"]) == ("Ours", True)


def test_a_header_declared_for_a_whole_path_is_not_declared_again() -> None:
    document = with_responses({}, parameters={"Key": {"name": "idempotency-key", "in": "header"}})
    document["paths"]["/orders"]["parameters"] = [{"$ref": "#/components/parameters/Key"}]

    optional = describe(document)
    required = describe(document, required=True)
    assert "parameters" not in optional["paths"]["/orders"]["post"]
    assert [each["required"] for each in key_parameters(required["paths"]["/orders"]["post"])] == [True]
    assert required["components"]["parameters"] == document["components"]["parameters"]


def test_a_problem_schema_of_the_application_is_kept() -> None:
    own = {"type": "object", "title": "Another"}
    described = describe(with_responses({}, schemas={"Problem": own}))

    assert described["components"]["schemas"]["Problem"] == own
    bad = described["paths"]["/orders"]["post"]["responses"]["400"]
    assert bad["content"]["application/problem+json"]["schema"]["$ref"] == "#/components/schemas/IdempotencyProblem"
    assert describe(described) == described


def test_the_given_document_is_not_changed() -> None:
    document = shop().openapi()
    before = copy.deepcopy(document)

    describe(document, required=True)

    assert document == before


def test_describing_twice_changes_nothing() -> None:
    app = shop()
    once = copy.deepcopy(document_of(app))

    assert describe(once, rules={"/orders/{number}": Rule(required=True)}) == once
    assert document_of(app) == once


# FastAPI.


def test_the_application_serves_the_described_document() -> None:
    app = shop()
    document_idempotency(app)

    async def served_document() -> Any:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            return (await client.get("/openapi.json")).json()

    served = asyncio.run(served_document())
    assert is_described(served["paths"]["/orders"]["post"])
    assert served == app.openapi()
    assert app.openapi() is app.openapi(), "it is made once"


def test_rules_are_found_in_routers_inside_routers() -> None:
    app, api, payments = FastAPI(), APIRouter(prefix="/v1"), APIRouter()

    @payments.post("/{order}/pay")
    @idempotent(required=True)
    def pay(order: int) -> None: ...

    api.include_router(payments, prefix="/payments")
    app.include_router(api, prefix="/api")

    [parameter] = key_parameters(document_of(app)["paths"]["/api/v1/payments/{order}/pay"]["post"])
    assert parameter["required"] is True


def test_a_mounted_application_is_unchanged() -> None:
    app, mounted = FastAPI(), shop()
    app.mount("/shop", mounted)

    assert document_of(app)["paths"] == {}
    assert not is_described(mounted.openapi()["paths"]["/orders"]["post"])


def test_a_route_added_later_is_described_too() -> None:
    app = shop()
    document_of(app)

    @app.post("/later")
    @idempotent(required=True)
    def later() -> None: ...

    assert key_parameters(app.openapi()["paths"]["/later"]["post"])[0]["required"] is True


# The documents are valid, and only documents are taken.


@pytest.mark.parametrize("own", [{}, {"rules": {"/*": Rule(required=True, store=False)}}])
def test_the_document_is_valid_openapi(own: dict[str, Any]) -> None:
    newer, older = shop(), shop()
    older.openapi_version = "3.0.3"

    OPENAPI_31_VALIDATOR.validate(document_of(newer, **own))
    OPENAPI_30_VALIDATOR.validate(document_of(older, **own))


def test_the_document_of_another_framework_can_be_described() -> None:
    @post("/orders")
    async def order() -> dict[str, int]:
        return {"number": 1}

    described = describe(Litestar([order]).openapi_schema.to_schema())

    OPENAPI_31_VALIDATOR.validate(described)
    assert is_described(described["paths"]["/orders"]["post"])


@pytest.mark.parametrize("document", [{}, {"swagger": "2.0"}, {"openapi": "4.0"}])
def test_only_openapi_3_is_accepted(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="must be OpenAPI 3"):
        describe(document)


@pytest.mark.parametrize("options", [{"paths": "/api/"}, {"methods": "POST"}])
def test_a_string_is_not_accepted_as_a_list(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="must be lists"):
        describe(shop().openapi(), **options)


def test_an_application_without_a_document_is_refused() -> None:
    with pytest.raises(InvalidOption, match="needs a FastAPI application"):
        document_idempotency(Starlette())


def test_a_document_with_no_free_schema_name_is_refused() -> None:
    taken = {"Problem": {"type": "string"}, "IdempotencyProblem": {"type": "string"}}

    with pytest.raises(InvalidOption, match="rename one"):
        describe(with_responses({}, schemas=taken))
