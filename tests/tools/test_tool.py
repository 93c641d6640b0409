"""Declarations of tools: required options, and invalid ones."""

# ruff: noqa: ARG005  # Tools have arguments because their calls differ by them.

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any, Literal

import pytest

from onceward.errors import InvalidOption, NotFound
from onceward.ledger.terms import Effect, EffectClass
from onceward.tools.json_schema import problem
from onceward.tools.tool import Tool, tool
from onceward.tools.toolbox import Toolbox


class Size(enum.StrEnum):
    SMALL = "small"
    LARGE = "large"


def refund(
    order_id: str,
    amount: Annotated[int, "in cents"] = 0,
    *,
    size: Size = Size.SMALL,
    kind: Literal["full", "part"] | None = None,
    items: list[str] | None = None,
    extra: dict[str, float] | None = None,
    whatever: Any = None,
    trace: str = "",
) -> None:
    """Give the money back."""


def cancel(order_id: str) -> None: ...


def test_the_effect_class_has_to_be_declared() -> None:
    with pytest.raises(TypeError, match="effect"):
        tool()(refund)  # type: ignore[call-arg]


@pytest.mark.parametrize("effect", ["harmless", "", None], ids=repr)
def test_an_effect_class_that_does_not_exist_is_refused(effect: Any) -> None:
    with pytest.raises(InvalidOption, match="pure, idempotent, compensatable, irreversible"):
        tool(effect=effect)(refund)


def test_a_plain_function_is_not_a_tool() -> None:
    with pytest.raises(InvalidOption, match="declare"):
        Toolbox([refund])  # type: ignore[list-item]


def generator(order_id: str) -> Iterator[str]:
    yield order_id


def by_position(order_id: str, /) -> None: ...


def any_number(*orders: str) -> None: ...


def takes_more(order_id: str, amount: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (refund, {"effect": "compensatable"}),
        (refund, {"effect": "irreversible", "undo": cancel}),
        (refund, {"effect": "compensatable", "undo": lambda somebody: None}),
        (refund, {"effect": "irreversible", "reconcile": lambda one, two: None}),
        (refund, {"effect": "irreversible", "key_fields": ["order"]}),
        (refund, {"effect": "irreversible", "key_fields": "order_id"}),
        (refund, {"effect": "irreversible", "template": "order:{order}"}),
        (refund, {"effect": "irreversible", "template": "order"}),
        (refund, {"effect": "irreversible", "key_fields": ["order_id"], "template": "{order_id}"}),
        (refund, {"effect": "irreversible", "key_fields": ["trace"], "volatile": ["trace"]}),
        (refund, {"effect": "irreversible", "exact": ["trace"], "volatile": ["trace"]}),
        (refund, {"effect": "irreversible", "volatile": ["nothing"]}),
        (refund, {"effect": "irreversible", "provider_key": "nothing"}),
        (refund, {"effect": "irreversible", "provider_key": "trace", "key_fields": ["trace"]}),
        (refund, {"effect": "irreversible", "name": "a b"}),
        (refund, {"effect": "irreversible", "name": "a:b"}),
        (refund, {"effect": "irreversible", "not_done": (1,)}),
        (refund, {"effect": "irreversible", "idempotent_for": -1}),
        (generator, {"effect": "pure"}),
        (by_position, {"effect": "pure"}),
        (any_number, {"effect": "pure"}),
    ],
    ids=lambda found: " ".join(sorted(found)) if isinstance(found, dict) else None,
)
def test_an_invalid_declaration_is_refused(function: Callable[..., Any], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        tool(**options)(function)


def test_a_tool_keeps_its_declaration() -> None:
    made = tool(effect="irreversible", key_fields=["order_id"], idempotent_for=timedelta(hours=1), version="7")(refund)

    assert (made.name, made.effect, made.description) == ("refund", Effect.IRREVERSIBLE, "Give the money back.")
    assert (made.keyed, made.idempotent_for, made.version) == (("order_id",), 3600.0, "7")


def test_a_tool_cannot_be_called_without_the_toolbox() -> None:
    assert not callable(tool(effect="irreversible")(refund))


def test_the_schema_follows_from_the_signature() -> None:
    made = tool(effect="irreversible", provider_key="trace")(refund)

    assert made.parameters == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string"},
            "amount": {"type": "integer", "description": "in cents", "default": 0},
            "size": {"enum": ["small", "large"], "default": "small"},
            "kind": {"anyOf": [{"enum": ["full", "part"]}, {"type": "null"}], "default": None},
            "items": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "extra": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "number"}}, {"type": "null"}],
                "default": None,
            },
            "whatever": {"default": None},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "order_id is missing"),
        ({"order_id": 5}, "order_id must be of type string, got an integer"),
        ({"order_id": None}, "order_id must be of type string, got null"),
        ({"order_id": "5", "nothing": 1}, "unknown argument nothing"),
        ({"order_id": "5", "amount": 1.5}, "amount must be of type integer, got a number"),
        ({"order_id": "5", "amount": True}, "amount must be of type integer, got a boolean"),
        ({"order_id": "5", "size": "huge"}, "size must be one of 'small', 'large'"),
        ({"order_id": "5", "kind": "other"}, "kind must be one of"),
        ({"order_id": "5", "items": ["a", 1]}, "items[1] must be of type string, got an integer"),
        ({"order_id": "5", "extra": {"a": "b"}}, "extra.a must be of type number, got a string"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    made = tool(effect="irreversible")(refund)

    found = problem(made.parameters, arguments)

    assert found is not None
    assert message in found


def test_valid_arguments_are_accepted() -> None:
    made = tool(effect="irreversible")(refund)
    whole = {"order_id": "5", "amount": 5.0, "kind": None, "items": [], "extra": {"a": 1}, "whatever": [{}]}

    assert problem(made.parameters, whole) is None


def test_a_toolbox_lists_its_tools_for_a_model() -> None:
    toolbox = Toolbox()

    @toolbox.tool(effect="pure", description="Look an order up.")
    def look_up(order_id: str) -> None: ...

    assert [one["name"] for one in toolbox.schema()] == ["look_up"]
    assert toolbox.schema()[0]["description"] == "Look an order up."
    assert "look_up" in toolbox
    assert len(toolbox) == 1


def test_a_tool_name_must_be_unique() -> None:
    toolbox = Toolbox([tool(effect="pure")(cancel)])

    with pytest.raises(InvalidOption, match="already"):
        toolbox.register(tool(effect="pure")(cancel))


def test_an_unknown_tool_is_reported_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match="cancel"):
        Toolbox([tool(effect="pure")(cancel)])["refund"]


def made(version: str = "1", effect: EffectClass = "pure", name: str = "cancel") -> Tool:
    return tool(effect=effect, version=version, name=name)(cancel)


def test_the_version_of_the_registry_depends_on_all_declarations() -> None:
    versions = {
        Toolbox(tools).registry_version
        for tools in ([made()], [made("2")], [made(effect="idempotent")], [made(), made(name="other")], [])
    }

    assert len(versions) == 5
    assert Toolbox([made(), made(name="b")]).registry_version == Toolbox([made(name="b"), made()]).registry_version
