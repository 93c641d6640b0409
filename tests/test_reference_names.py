"""The reference is correct: every dotted name resolves, and every function takes the arguments that it shows."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOTTED = re.compile(r"(?<![\w./:'-])onceward(?:\.[A-Za-z_]\w*)+")
CALL = re.compile(r"(?<![\w.])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\(([^()]*)\)")
# File names that look like modules.
FILES = {"onceward.toml"}
# Functions of the user, which the package calls.
CALLBACKS = {"progress"}


@functools.cache
def spans() -> tuple[str, ...]:
    """Everything that the reference writes as code, in a line."""
    text = (ROOT / "docs" / "reference.md").read_text("utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return tuple(re.findall(r"`([^`\n]+)`", text))


def resolve(name: str) -> Any:
    """The module, class or function of a dotted name; None when there is none."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found
    return None


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    every = node.args
    names = {one.arg for one in (*every.posonlyargs, *every.args, *every.kwonlyargs)}
    return names | {"**"} if every.kwarg is not None else names


@functools.cache
def takes() -> dict[str, list[set[str]]]:
    """Return the parameters of each function of the package, by name. A class has the parameters of its constructor or
    its fields.
    """
    found: dict[str, list[set[str]]] = defaultdict(list)
    other_names: list[tuple[str, str]] = []
    for path in sorted((ROOT / "src" / "onceward").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found[node.name].append(parameters(node))
                case ast.ClassDef():
                    fields = {
                        str(one.target.id)
                        for one in node.body
                        if isinstance(one, ast.AnnAssign) and hasattr(one.target, "id")
                    }
                    made = [
                        parameters(one)
                        for one in node.body
                        if isinstance(one, ast.FunctionDef) and one.name == "__init__"
                    ]
                    found[node.name] += made or [fields]
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=same)):
                    other_names.append((name, same))
    for name, same in other_names:
        found[name] += found.get(same, [])
    return found


def shown(arguments: str) -> set[str]:
    """The names among the arguments as they are written: `key, *, effect, retain_seconds=None, **options`."""
    words = (one.strip().partition("=")[0].lstrip("*") for one in arguments.split(","))
    return {word for word in words if word.isidentifier()}


def loggers() -> set[str]:
    """The names of loggers, which are promises of their own and need not be modules."""
    texts = (path.read_text("utf-8") for path in (ROOT / "src" / "onceward").rglob("*.py"))
    return {name for text in texts for name in re.findall(r'getLogger\("([^"]+)"\)', text)}


def test_every_dotted_name_of_the_reference_exists() -> None:
    names = {name for span in spans() for name in DOTTED.findall(span)} - FILES - loggers()

    assert len(names) > 10
    assert sorted(name for name in names if resolve(name) is None) == []


def test_every_function_of_the_reference_exists_and_has_the_shown_parameters() -> None:
    calls = {(name, arguments) for span in spans() for name, arguments in CALL.findall(span)}
    wrong = []
    for name, arguments in sorted(calls):
        known = takes().get(name.rpartition(".")[2], [])
        if name not in CALLBACKS and not any("**" in one or shown(arguments) <= one for one in known):
            wrong.append(f"{name}({arguments})")

    assert len(calls) > 100
    assert wrong == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert resolve("onceward.http.no_such_name") is None
    assert resolve("onceward.turns.Toolbox.call") is not None
    assert shown("key, *, effect, retain_seconds=None, …, **options") == {"key", "effect", "retain_seconds", "options"}
