"""The layout of the package, read from its source: modules, lines, entry points, and imports between folders.

`make layout` (`python -m tests.layout`) prints it. `tests/test_layout.py` checks the rules on it.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "onceward"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the package, by its dotted name. `is_folder` is true for an `__init__`."""

    name: str
    path: Path
    tree: ast.Module
    lines: int
    is_folder: bool

    @property
    def folder(self) -> str:
        return self.name if self.is_folder else self.name.rpartition(".")[0]

    def classes(self) -> list[str]:
        """Every class that is defined at the top of the module."""
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def public(self) -> list[str]:
        """Return the names in `__all__`."""
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                    return [str(name.value) for name in names if isinstance(name, ast.Constant)]
                case _:
                    continue
        return []


def imported(tree: ast.AST, modules: Mapping[str, object]) -> Iterator[str]:
    """Every module of the package that a tree imports, at the top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and (module := node.module or "") in modules:
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield full if full in modules else module


def read(source: Path) -> dict[str, Module]:
    """Every module below a folder that holds the package, by name."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_folder = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_folder else parts)
        text = path.read_text("utf-8")
        found[name] = Module(name, path, ast.parse(text), len(text.splitlines()), is_folder)
    return found


@functools.cache
def package() -> dict[str, Module]:
    return read(ROOT / "src")


def edges(modules: Mapping[str, Module]) -> set[tuple[str, str]]:
    """Pairs of modules of which the first imports the second."""
    return {
        (name, other) for name, module in modules.items() for other in imported(module.tree, modules) if other != name
    }


def folder_edges(modules: Mapping[str, Module]) -> dict[tuple[str, str], int]:
    """Count the imports from one folder to another."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for one, other in edges(modules):
        here, there = modules[one].folder, modules[other].folder
        if here != there:
            counts[here, there] += 1
    return dict(counts)


def sibling_edges(modules: Mapping[str, Module]) -> dict[str, set[tuple[str, str]]]:
    """For each folder, which of the folders right in it import which others, at any depth."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for one, other in folder_edges(modules):
        here, there = one.split("."), other.split(".")
        depth = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
        if depth is not None:
            found[".".join(here[:depth])].add((here[depth], there[depth]))
    return dict(found)


def cycle(pairs: set[tuple[str, str]]) -> list[str]:
    """One cycle in a graph, as the names on it; empty when there is none."""
    after: dict[str, list[str]] = defaultdict(list)
    for one, other in sorted(pairs):
        after[one].append(other)
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        done.add(name)
        return next((found for other in after[name] if (found := visit(other, [*way, name]))), [])

    return next((found for name in sorted(after) if (found := visit(name, []))), [])


def words(name: str) -> list[str]:
    """The words of a module's or class's name, in small letters: `WriteResult` and `write_result` give the same."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def report(modules: Mapping[str, Module]) -> str:
    """The layout as text: a line for each folder, then the imports between folders."""
    lines = [f"{'modules':>7} {'lines':>6}  folder: entry points"]
    for folder in sorted(name for name, module in modules.items() if module.is_folder):
        inside = [module for module in modules.values() if module.folder == folder]
        entry = ", ".join(modules[folder].public()) or "(by module name)"
        lines.append(f"{len(inside) - 1:7} {sum(module.lines for module in inside):6}  {folder}: {entry}")
    counts = folder_edges(modules)
    lines += ["", f"{len(modules)} modules, {sum(module.lines for module in modules.values())} lines"]
    lines += ["", f"{len(counts)} imports between folders, with how many modules' imports each stands for:"]
    lines += [f"  {one} -> {other}  {count}" for (one, other), count in sorted(counts.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(package()))  # noqa: T201  # what the script is for
