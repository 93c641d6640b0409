"""The layout rules of the package, checked on the source. `python -m tests.layout` prints the layout."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import pytest
from tests.layout import Module, cycle, edges, imported, package, read, report, sibling_edges, words

ROOT = Path(__file__).parent.parent

# The library works without the extra `hub`. The hub and the command are above it.
SERVER = ("onceward.hub", "onceward.cli")
# These may import the hub: re-exports for users, and `python -m onceward`.
REACHES_THE_SERVER = ("onceward.turns", "onceward.__main__")

# A folder is a page of a reader's map. A larger one needs its reason here.
MODULES_MAX = 15
LARGER: dict[str, str] = {}

# The public names of these folders are documented and tested one by one; any of their modules may be imported.
DOCUMENTED = frozenset({
    "onceward", "onceward.http", "onceward.http.client", "onceward.hub.client", "onceward.reconcile", "onceward.testing",
    "onceward.turns",
})  # fmt: skip
# The whole package, which has no other folders beside it.
NOTHING_BESIDE = frozenset({"onceward"})
# Loaded by name, not imported.
BY_NAME = frozenset({"onceward.hub.db.migrations.versions"})

GLOSSARY = ROOT / "docs" / "glossary.md"
# Names that use a banned word in another sense, with the reason.
SAME_WORD: dict[str, str] = {
    "single_flight": "the field's word for concurrent callers that share one read",
    "guarded": "a public name of onceward.testing",
    "NotGuarded": "a public name of onceward.errors",
    "UnexpectedAnswer": "a public name of onceward.errors",
    "ChatAnswer": "a public name of onceward.hub.client",
}
# Public classes that share a name, with the reason.
SAME_NAME: dict[str, str] = {
    "Busy": "a value of begin, and the exception that run raises for it: both are promised",
    "InDoubt": "as Busy",
    "Expired": "as Busy",
    "Status": "of an entry, and of a turn: both are promised",
    "Message": "of a turn, of a topic, and the client's view of the latter: all are promised",
    "Entry": "of the ledger, and the client's view of an ingested one: both are promised",
    **dict.fromkeys(
        (
            "Attached",
            "Attachment",
            "Backfilled",
            "Collected",
            "Damage",
            "Event",
            "MessageMade",
            "Policy",
            "Readiness",
            "Task",
            "TaskAttachment",
            "Topic",
            "TopicMade",
        ),
        "one thing on both sides of the wire: the hub's, and the client's view of it, which is promised",
    ),
    **dict.fromkeys(
        ("AttachmentList", "AttachmentShown", "MessageShown", "Outcome"),
        "models of routes: their names are part of the OpenAPI document",
    ),
}


def server(name: str) -> bool:
    return name.startswith(SERVER)


def upward(modules: dict[str, Module]) -> set[str]:
    """Imports from the library to the server."""
    return {
        f"{one} imports {other}"
        for one, other in edges(modules)
        if server(other) and not server(one) and not one.startswith(REACHES_THE_SERVER)
    }


def test_the_library_does_not_import_the_server() -> None:
    assert upward(package()) == set()


def test_sibling_folders_do_not_import_each_other_in_a_cycle() -> None:
    circles = {parent: found for parent, pairs in sibling_edges(package()).items() if (found := cycle(pairs))}

    assert circles == {}


def crowded(modules: dict[str, Module]) -> set[str]:
    """Folders with more modules than a reader keeps in mind."""
    sizes: dict[str, int] = defaultdict(int)
    for module in modules.values():
        if not module.is_folder:
            sizes[module.folder] += 1
    return {folder for folder, size in sizes.items() if size > MODULES_MAX}


def test_a_folder_has_few_modules_or_a_reason() -> None:
    assert crowded(package()) == LARGER.keys()


def test_every_folder_has_a_front_door_that_says_where_to_start() -> None:
    for module in package().values():
        if module.is_folder and module.folder not in BY_NAME:
            text = ast.get_docstring(module.tree) or ""
            assert "Start with" in text, f"{module.name} does not say where to start reading"
            if module.folder not in NOTHING_BESIDE and "Nothing is defined here" not in text:
                assert "Not here:" in text, f"{module.name} does not say what a reader finds elsewhere"
            assert len(text.splitlines()) >= 3, f"{module.name} does not say what lives there and what does not"
            assert module.public() or not outside_uses(module.name), f"{module.name} has no __all__"


@functools.cache
def uses() -> dict[str, set[str]]:
    """For each folder, its modules that are imported from other folders."""
    modules = package()
    found: dict[str, set[str]] = defaultdict(set)
    for one, other in edges(modules):
        if not modules[other].is_folder and modules[other].folder != modules[one].folder:
            found[modules[other].folder].add(other.rpartition(".")[2])
    return found


def outside_uses(folder: str) -> set[str]:
    return uses().get(folder, set())


def test_other_folders_import_what_the_front_door_names() -> None:
    closed = {
        f"{module.name}: {', '.join(sorted(more))}"
        for module in package().values()
        if module.is_folder and module.name not in DOCUMENTED | BY_NAME
        if (more := outside_uses(module.name) - set(module.public()))
    }

    assert closed == set(), "add it to __all__ of the folder, or import something that is there"


def test_every_name_of_a_front_door_exists() -> None:
    modules = package()
    for module in modules.values():
        if module.is_folder:
            known = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
            known |= {
                alias.asname or alias.name
                for node in ast.walk(module.tree)
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            }
            known |= {node.name for node in module.tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            missing = {name for name in module.public() if name not in known and f"{module.name}.{name}" not in modules}
            assert missing == set(), module.name


# Names.


def banned(*, as_module: bool = False) -> dict[tuple[str, ...], str]:
    """The column "never call it" of the glossary: the words of each entry, and the term to use. With `as_module`, those that
    are banned as the whole name of a module.
    """
    found: dict[tuple[str, ...], str] = {}
    for line in GLOSSARY.read_text("utf-8").splitlines():
        if line.startswith("| **"):
            term, *_, never = [cell.strip() for cell in line.strip().strip("|").split("|")]
            # `rows` (of turns) is banned there alone, which is for people to see.
            pattern = r"`([^`]+)`(?= \(as a module name\))" if as_module else r"`([^`]+)`(?! \()"
            for name in re.findall(pattern, never):
                found[tuple(words(name.replace(" ", "_").replace("-", "_")))] = term.strip("*")
    return found


def breaks(name: str, rules: dict[tuple[str, ...], str]) -> str | None:
    """The term to use instead, when a name holds a banned word."""
    parts = words(name)
    for rule, term in rules.items():
        if name not in SAME_WORD and any(tuple(parts[i : i + len(rule)]) == rule for i in range(len(parts))):
            return term
    return None


def test_no_module_or_class_has_a_name_banned_by_the_glossary() -> None:
    rules = banned()
    assert len(rules) >= 40  # the table was found
    broken = {
        f"{module.name}: {name}: say {term}"
        for module in package().values()
        for name in [module.name.rpartition(".")[2], *module.classes()]
        if (term := breaks(name, rules))
    }

    assert broken == set()


def test_no_module_has_a_full_name_banned_by_the_glossary() -> None:
    rules = banned(as_module=True)
    assert rules
    broken = {name: rules[parts] for name in package() if (parts := tuple(words(name.rpartition(".")[2]))) in rules}

    assert broken == {}


def repeated(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Public class names that several modules define, and those modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for name in module.classes():
            if not name.startswith("_"):
                places[name].append(module.name)
    return {name: where for name, where in places.items() if len(where) > 1}


def test_a_public_class_name_means_one_thing_or_has_a_reason() -> None:
    assert repeated(package()).keys() == SAME_NAME.keys()


def test_the_script_prints_every_folder() -> None:
    text = report(package())

    assert all(f"  {module.name}: " in text for module in package().values() if module.is_folder)


# The rules can fail.


def tree(tmp_path: Path, files: dict[str, str]) -> dict[str, Module]:
    for name, text in files.items():
        path = tmp_path / "onceward" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read(tmp_path)


def test_a_cycle_between_folders_is_found(tmp_path: Path) -> None:
    modules = tree(
        tmp_path,
        {
            "a/__init__.py": "", "a/deep/x.py": "from onceward.b import y", "a/deep/__init__.py": "",
            "b/__init__.py": "", "b/y.py": "def f():\n    import onceward.c.z",
            "c/__init__.py": "", "c/z.py": "from onceward import a",
            "__init__.py": "",
        },
    )  # fmt: skip

    assert cycle(sibling_edges(modules)["onceward"]) == ["a", "b", "c", "a"]


def test_an_import_from_the_library_to_the_server_is_found(tmp_path: Path) -> None:
    modules = tree(
        tmp_path,
        {
            "__init__.py": "", "hub/__init__.py": "", "hub/app.py": "import onceward.hub", "turns/__init__.py": "import onceward.hub.app",
            "http/__init__.py": "", "http/x.py": "def f():\n    from onceward.hub.app import create_app",
        },
    )  # fmt: skip

    assert upward(modules) == {"onceward.http.x imports onceward.hub.app"}


def test_a_crowded_folder_and_a_repeated_class_are_found(tmp_path: Path) -> None:
    files = {f"a/m{number}.py": "" for number in range(MODULES_MAX + 1)}
    files |= {f"b/m{number}.py": "class Same: ...\nclass _Own: ..." for number in range(MODULES_MAX)}
    modules = tree(tmp_path, {"__init__.py": "", "a/__init__.py": "", "b/__init__.py": "", **files})

    assert crowded(modules) == {"onceward.a"}
    assert repeated(modules).keys() == {"Same"}


def test_no_cycle_is_found_where_there_is_none() -> None:
    assert cycle({("a", "b"), ("b", "c"), ("a", "c")}) == []


@pytest.mark.parametrize(
    "text", ["from onceward.hub import app", "import onceward.hub.app", "def f():\n  from onceward.hub.app import x"]
)
def test_an_import_is_found_however_it_is_written(text: str) -> None:
    assert list(imported(ast.parse(text), {"onceward.hub": 1, "onceward.hub.app": 1})) == ["onceward.hub.app"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("WSGIServer", ["wsgi", "server"]),
        ("_FlightPlan2", ["flight", "plan", "2"]),
        ("write_result", ["write", "result"]),
    ],
)
def test_a_name_is_split_into_its_words(name: str, parts: list[str]) -> None:
    assert words(name) == parts


def test_a_banned_word_is_found_inside_a_name() -> None:
    rules = {("flight",): "in-flight batch", ("bring", "home"): "complete"}

    assert breaks("_FlightPlan", rules) == "in-flight batch"
    assert breaks("bring_home", rules) == "complete"
    assert breaks("BringHome", rules) == "complete"
    assert breaks("inflight", rules) is None
    assert breaks("single_flight", rules) is None
