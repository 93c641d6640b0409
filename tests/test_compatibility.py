"""Outcomes, databases, commands and names of the last release with the old layout work with this one.

The files are in `tests/fixtures/before_layout`, whose README says how they were made.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import json
import sqlite3
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.hub.in_process_hub import in_process_hub

from onceward import Ledger, testing
from onceward.core import claim
from onceward.core.json_text import written
from onceward.core.moved import MOVED
from onceward.core.outcome import pack, unpack
from onceward.hub.config.config import Config, HubSettings
from onceward.hub.db.engine import open_database
from onceward.hub.db.migrate import migrate
from onceward.store.open import open_store
from onceward.testing import PinnedClock
from onceward.turns import Brain, load_brain

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "before_layout"
OUTCOMES = json.loads((FIXTURES / "outcomes.json").read_text("utf-8"))
NAMES = (FIXTURES / "names.txt").read_text("utf-8").split()
# They import a framework that takes seconds; the tests of the runners import them.
HEAVY = ("onceward.turns.runners.dbos", "onceward.turns.runners.hatchet")


def restore(script: str, path: Path) -> Path:
    """Make the SQLite file that a script describes."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((FIXTURES / script).read_text("utf-8"))
    return path


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


@pytest.fixture
def old_names_allowed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


# Stored outcomes.


def dump(value: object) -> object:
    """Return the value as JSON for comparison; the script that made the outcomes has the same function."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {one.name: dump(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): dump(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [dump(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if value is None or isinstance(value, str | int | float) else str(value)


# Fields that records got since, all with defaults.
GAINED = {"recovery", "recovery_seq", "refuse_until", "key_basis", "not_done_count", "recovery_point"}


def without_gained(value: object) -> object:
    """Return JSON without the fields that did not exist when the outcomes were stored."""
    if isinstance(value, dict):
        return {
            name: without_gained(item)
            for name, item in value.items()
            # `InDoubt` gained `now`, which is 0 in a value that somebody stored.
            if name not in GAINED and (name, item) != ("now", 0)
        }
    return [without_gained(item) for item in value] if isinstance(value, list) else value


def must_not_run() -> None:
    raise AssertionError("it is in the ledger already")


@pytest.fixture(scope="module")
def old_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    path = restore("ledger.sql", tmp_path_factory.mktemp("old_ledger") / "ledger.db")
    with Ledger(open_store(f"sqlite:///{path}", clock=PinnedClock())) as ledger:
        yield ledger


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome["key"])
@pytest.mark.usefixtures("old_names_allowed")
def test_an_outcome_whose_class_had_another_module_is_replayed(outcome: dict[str, Any], old_ledger: Ledger) -> None:
    public = resolve(outcome["key"].replace(":", "."))

    value: Any = old_ledger.blocking.run(outcome["key"], must_not_run, effect="irreversible")

    assert type(value) is public
    assert without_gained(dump(value)) == outcome["value"]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome["key"])
@pytest.mark.usefixtures("old_names_allowed")
def test_a_value_is_stored_in_the_old_format(outcome: dict[str, Any], old_ledger: Ledger) -> None:
    """Fingerprints are made of the same form, and processes of both versions may share a store."""
    entry = old_ledger.blocking.read("call", outcome["key"])
    assert entry is not None
    stored = old_ledger.blocking.body(entry)
    assert stored is not None
    resolve(outcome["key"].replace(":", "."))

    packed = pack(unpack(stored), 10 * len(stored))
    assert packed is not None
    same = packed if packed == stored else written(without_gained(json.loads(packed))).encode()
    assert same == stored


def test_the_stored_outcomes_name_moved_classes() -> None:
    moved = {outcome["stored"].partition(":")[0] for outcome in OUTCOMES} & MOVED.keys()

    assert len(moved) >= 20


# The hub's database.


def test_a_hub_serves_what_the_old_layout_stored(tmp_path: Path) -> None:
    old = restore("hub.sql", tmp_path / "hub.db")
    with closing(open_database(f"sqlite:///{old}")) as database:
        migrate(database)
    with in_process_hub(Config(HubSettings(data_dir=str(tmp_path)))) as hub:
        (topic,) = hub.get("/api/v1/topics").json()["topics"]
        task = hub.get("/v1/tasks/task-1").json()
        payload = hub.post("/normalize/telegram", json={"text": "Read https://example.com/a"}).json()
        entry = hub.post("/db/insert", json=payload).json()
        turn = hub.get("/turns/turn_1k0gps1yzteq5yw50nv0m").json()
        events = hub.get("/api/v1/events").json()["events"]

    assert topic["title"] == "before the layout"
    assert task["title"] == "a task"
    assert (entry["action"], entry["id"]) == ("skipped", "01a1ecfa-6632-7948-91cc-c539b04e1080")
    assert (turn["status"], turn["response"]) == ("complete", "Order 12345, a teapot: 49.90 EUR were paid back.")
    assert [call["status"] for call in turn["tools"]] == ["done"]
    assert [event["name"] for event in events][:2] == ["topic.created", "entry.inserted"]


def test_the_steps_of_the_moved_migrations_make_the_tables_of_the_old_layout(tmp_path: Path) -> None:
    """All steps are found where they are now, and a database that the old layout made needs only later ones."""
    old = restore("hub.sql", tmp_path / "old.db")
    with closing(open_database(f"sqlite:///{old}")) as database:
        migrate(database)
    with closing(open_database(f"sqlite:///{tmp_path}/new.db")) as database:
        assert migrate(database)

    assert tables(tmp_path / "new.db") == tables(old)


def tables(path: Path) -> set[tuple[str, str | None]]:
    with closing(sqlite3.connect(path)) as db:
        return set(db.execute("SELECT name, sql FROM sqlite_master"))


# The command.


def test_the_entry_point_is_unchanged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (installed,) = metadata.entry_points(group="console_scripts", name="onceward")

    assert project["scripts"]["onceward"] == installed.value == "onceward.cli:main"
    assert callable(installed.load())


def test_the_package_can_be_run_as_a_module() -> None:
    found = subprocess.run([sys.executable, "-m", "onceward", "--help"], capture_output=True, text=True, check=True)

    assert "serve" in found.stdout


def test_the_demo_brain_is_at_its_old_path() -> None:
    assert isinstance(load_brain("onceward.hub.refund_desk:brain"), Brain)


# Names.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("old_names_allowed")
def test_a_name_in_the_old_documents_can_be_imported(name: str) -> None:
    heavy = name.startswith(HEAVY)

    assert is_written(name) if heavy else resolve(name) is not None, name


def is_written(name: str) -> bool:
    """Return whether a module exists, and imports or defines the given name, without importing it."""
    module = ".".join(name.split(".")[:4])
    spec = importlib.util.find_spec(module)
    source = "" if spec is None or spec.origin is None else Path(spec.origin).read_text("utf-8")
    names = {
        alias.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return bool(source) and (name == module or name.rpartition(".")[2] in names)


def forget(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next import of an old name be its first one. Its package, which may have moved, too, is imported already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module(old.rpartition(".")[0])
    monkeypatch.delitem(sys.modules, old, raising=False)


# Functions of their packages have the same names, and must not be replaced by modules.
FUNCTIONS = {
    "onceward.blobs.media.settle": "onceward.hub.media",
    "onceward.blobs.media.sniff": "onceward.hub.media",
    "onceward.turns.tool": "onceward.turns",
}


@pytest.mark.parametrize(("old", "package"), FUNCTIONS.items(), ids=str)
@pytest.mark.usefixtures("old_names_allowed")
def test_an_old_module_never_replaces_a_function(old: str, package: str) -> None:
    name = old.rpartition(".")[2]
    function = getattr(importlib.import_module(package), name)

    with pytest.raises(ModuleNotFoundError, match=rf"^{old} is now {MOVED[old]}; import it from there$"):
        importlib.import_module(old)

    assert inspect.isfunction(function)
    assert getattr(importlib.import_module(package), name) is function


@pytest.mark.parametrize(
    ("old", "new"), {old: new for old, new in MOVED.items() if old not in FUNCTIONS}.items(), ids=str
)
def test_an_old_name_warns_and_gives_the_module_itself(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(new)
    own = module.__spec__
    forget(old, monkeypatch)

    with pytest.warns(DeprecationWarning, match=rf"^{old} is now {new}; import it from there$"):
        found = importlib.import_module(old)

    assert found is module
    assert own is not None
    assert (module.__spec__, module.__name__, own.name) == (own, new, new)


def test_a_module_of_a_moved_package_is_not_loaded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its package has the path of the new one, where a second copy would be found, with classes of its own."""
    assert "onceward.db.page" not in MOVED
    forget("onceward.db.page", monkeypatch)

    with pytest.warns(DeprecationWarning, match="onceward.hub.db.page"):
        found = importlib.import_module("onceward.db.page")

    assert found is importlib.import_module("onceward.hub.db.page")


@pytest.mark.usefixtures("old_names_allowed")
def test_an_unknown_name_is_not_found() -> None:
    for name in ("onceward.no_such_module", "onceward.db.no_such_module"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)
    assert resolve("onceward.turns.no_such_name") is None
    assert not is_written("onceward.turns.runners.hatchet.no_such_name")
    assert not is_written("onceward.turns.runners.no_such_module")


# Formerly public names of a ledger that are internal now.


@pytest.mark.parametrize("name", ["line", "look", "keep", "drop", "lease", "retain"])
def test_an_internal_of_the_ledger_is_found_under_its_old_name_with_a_warning(name: str) -> None:
    with (
        Ledger(open_store("memory:")) as ledger,
        pytest.warns(DeprecationWarning, match=rf"^Ledger\.{name} is internal"),
    ):
        assert getattr(ledger, name) is not None


@pytest.mark.usefixtures("old_names_allowed")
def test_a_claim_is_renewed_and_read_under_the_old_names() -> None:
    with Ledger(open_store("memory:")) as ledger:
        held: Any = ledger.blocking.begin("call", "k", repeatable=True)
        old: Any = ledger
        old.drop(old.keep(held, None, None, 60))
        entry = ledger.blocking.read("call", "k")

        assert (old.lease(1.0), old.retain(2.0)) == (1_000_000, 2_000_000)
        assert entry is not None
        assert asyncio.run(old.look(entry.ref)) == entry
        with pytest.raises(AttributeError, match="'Ledger' object has no attribute 'no_such_name'"):
            _ = old.no_such_name


def test_a_custom_store_may_use_the_old_names() -> None:
    """Its class of results; tests/store/dispatch has a test for the methods `pack`, `depart` and `grounded`."""
    assert claim.Answer is claim.WriteResult
    assert testing.FlownStore is testing.PipelinedStore
