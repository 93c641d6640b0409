"""Every public function, method and class documents its parameters, its result and the exceptions that it raises."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PUBLIC_MODULES = (
    "onceward",
    "onceward.errors",
    "onceward.ledger",
    "onceward.http",
    "onceward.http.client",
    "onceward.http.openapi",
    "onceward.tools",
    "onceward.turns",
    "onceward.turns.runners.local",
    "onceward.turns.runners.dbos",
    "onceward.turns.runners.hatchet",
    "onceward.testing",
    "onceward.hub.client",
    "onceward.integrations.fastmcp",
    "onceward.integrations.mcp",
    "onceward.integrations.mcp_wrap",
)


def public_objects() -> Iterator[tuple[str, Any]]:
    """Each public function and class once, by the shortest name that it can be imported under."""
    seen: set[int] = set()
    for module_name in PUBLIC_MODULES:
        with warnings.catch_warnings(action="ignore"):  # the engines' own packages use deprecated names
            module = importlib.import_module(module_name)
        names = getattr(module, "__all__", None)
        for name in names or [one for one in vars(module) if not one.startswith("_")]:
            found = getattr(module, name)
            # Without a list of its public names, a module answers for what it defines.
            is_ours = str(getattr(found, "__module__", "")).startswith("onceward" if names else module_name)
            if is_ours and (inspect.isclass(found) or inspect.isroutine(found)) and id(found) not in seen:
                seen.add(id(found))
                yield f"{module_name}.{name}", found


def callables() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Each public callable with its name and its docstring. The parameters of a class are in the docstring of the class."""
    for name, found in public_objects():
        if not inspect.isclass(found):
            yield name, found, inspect.getdoc(found) or ""
            continue
        if is_built_by_hand(found):
            yield name, found.__init__, inspect.getdoc(found) or ""
        for method_name, method in vars(found).items():
            plain = method.__func__ if isinstance(method, classmethod | staticmethod) else method
            if not method_name.startswith("_") and inspect.isfunction(plain) and not is_inherited(found, method_name):
                yield f"{name}.{method_name}", plain, inspect.getdoc(plain) or ""


# Objects that users get from Onceward and never build: their parameters are not public.
HANDED_OUT = {
    "Operation", "Context", "Audit", "Chat", "Claims", "Following", "Ingest", "Storage",
    "BlockingAudit", "BlockingChat", "BlockingClaims", "BlockingFollowing", "BlockingIngest", "BlockingStorage",
}  # fmt: skip


def is_built_by_hand(found: type) -> bool:
    """True if users call the class's own `__init__`. Records, enums and exceptions document their fields instead."""
    if found.__name__ in HANDED_OUT or getattr(found, "_is_protocol", False) or issubclass(found, Exception):
        return False
    return "__init__" in vars(found) and not hasattr(found, "__dataclass_fields__")


def is_inherited(found: type, name: str) -> bool:
    """True if a base class outside Onceward defines the method: its own documents describe it."""
    return any(name in vars(base) and not base.__module__.startswith("onceward") for base in found.__mro__[1:])


def problems_of(function: Callable[..., Any], docstring: str) -> list[str]:
    """Return the facts about the function that its docstring lacks."""
    if not docstring:
        return ["it has no docstring"]
    signature = inspect.signature(function)
    names = [name for name in signature.parameters if name not in {"self", "cls"} and not name.startswith("_")]
    arguments = section(docstring, "Args")
    problems = [
        f"Args does not name {name}" for name in names if not re.search(rf"^\*{{0,2}}{name}\b", arguments, re.MULTILINE)
    ]
    returns = str(signature.return_annotation)
    is_documented = (
        section(docstring, "Returns") or section(docstring, "Yields") or docstring.startswith(("Return", "True if"))
    )
    if returns not in {"None", "<class 'inspect._empty'>", "Never", "NoReturn", "Self"} and not is_documented:
        problems.append(f"it does not say what it returns ({returns})")
    raises = section(docstring, "Raises")
    problems += [f"Raises does not name {name}" for name in sorted(raised(function)) if name not in raises]
    return problems


def section(docstring: str, title: str) -> str:
    found = re.search(rf"^{title}:\n((?: .*\n?|\n)+)", docstring, re.MULTILINE)
    return textwrap.dedent(found.group(1)) if found else ""


@functools.cache
def raised(function: Callable[..., Any]) -> frozenset[str]:
    """The exceptions that the function itself raises by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return frozenset(
        ast.unparse(node.exc.func).rpartition(".")[2]
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func)[:1].isupper()
    )


CALLABLES = {name: (function, docstring) for name, function, docstring in callables()}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_function_is_documented(name: str) -> None:
    assert problems_of(*CALLABLES[name]) == []


@pytest.mark.parametrize("name", [name for name, found in public_objects() if inspect.isclass(found)])
def test_a_public_class_is_documented(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    assert "__doc__" in vars(found)
    assert found.__doc__


def refund(order: str, *, cents: int) -> bool:
    """Refund an order."""
    if not cents:
        raise ValueError(order)
    return True


def test_the_check_finds_what_is_missing() -> None:
    assert problems_of(refund, refund.__doc__ or "") == [
        "Args does not name order",
        "Args does not name cents",
        "it does not say what it returns (bool)",
        "Raises does not name ValueError",
    ]
    assert problems_of(refund, "") == ["it has no docstring"]
    whole = (
        "Refund an order.\n\nArgs:\n    order: The id.\n    cents: The amount.\n\n"
        "Returns:\n    True.\n\nRaises:\n    ValueError: The amount is zero.\n"
    )
    assert problems_of(refund, whole) == []
