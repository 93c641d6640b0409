"""The reference names what exists: every dotted name resolves, every function takes the arguments that it shows, and the
table of log events is that of the source.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.layout import Module, package
from tests.log_events import UNKNOWN, LogEvents, log_events, table

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
    """Return the module, class or function of a dotted name; None if it does not exist."""
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
    return {logger for logger, _ in log_events(package().values())}


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


def test_the_reference_lists_every_log_event_with_its_logger_level_and_fields() -> None:
    events = log_events(package().values())

    assert len(events) > 40
    assert table((ROOT / "docs" / "reference.md").read_text("utf-8")) == events


@pytest.mark.parametrize(
    ("source", "name", "fields"),
    [
        ("log_event(_log.warning, 'disk_full', path=path, hint='buy another')", "disk_full", {"path"}),
        ("name = 'a' if x else 'b'\n    log_event(_log.warning, name)", "b", set()),
        ("log_event(_log.warning, 'disk_full', **fields())", "disk_full", {"path"}),
        ("_log.warning('disk_full', extra={**fields(), 'size': 1})", "disk_full", {"path", "size"}),
        ("log_event(_log.warning, name_of(x))", UNKNOWN, set()),
        ("log_event(_log.warning, 'disk_full', **x)", "disk_full", {UNKNOWN}),
    ],
)
def test_a_log_event_is_found_with_its_fields(source: str, name: str, fields: set[str]) -> None:
    before = "_log = logging.getLogger('onceward.disk')\n\ndef fields():\n    return {'path': '/'}\n"
    tree = ast.parse(f"{before}\ndef check(x):\n    {source}\n")
    found = log_events([Module("onceward.disk", ROOT / "disk.py", tree, 1, is_folder=False)])

    assert found["onceward.disk", name] == LogEvents(frozenset({"WARNING"}), frozenset(fields))


def test_a_row_of_the_table_is_read() -> None:
    row = "| `onceward.disk` | `disk_full` | WARNING, ERROR | `path`, `size` | the disk is full |"

    assert table(row) == {
        ("onceward.disk", "disk_full"): LogEvents(frozenset({"WARNING", "ERROR"}), frozenset({"path", "size"}))
    }


def test_a_name_that_does_not_exist_is_found() -> None:
    assert resolve("onceward.http.no_such_name") is None
    assert resolve("onceward.turns.Toolbox.call") is not None
    assert shown("key, *, effect, retain_seconds=None, …, **options") == {"key", "effect", "retain_seconds", "options"}
