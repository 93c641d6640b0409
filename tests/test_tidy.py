"""The house rules, checked on the source itself. The rules are data; what follows only applies them."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.regexes import patterns, slow

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "onceward"

# Lower imports nothing of higher. A part is a package or a module right under `onceward`.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors"}),
    frozenset({"core"}),
    frozenset({"old_names", "store"}),
    frozenset({"ledger"}),
    frozenset({"http", "metrics", "reconcile", "tools"}),
    frozenset({"integrations", "testing"}),
    frozenset({"hub"}),
    frozenset({"turns", "cli"}),
    frozenset({"__main__"}),
)
# `onceward` itself gathers the public names; a layer that imported it would import everything.
TOP = "__init__"
# Inside the hub: what these share is below them; they do not know of each other.
STRANGERS = frozenset({"turns", "ingest", "topics", "tasks"})
BELOW_STRANGERS = frozenset({"file_lock", "db", "db_threads", "events", "blobs", "media", "archives", "web_url"})

# Where each package from outside may be imported: in one module, behind which it can be replaced.
DRIVERS: dict[str, tuple[str, ...]] = {
    "rfc8785": ("core/canonical.py",),
    "multipart": ("http/request/form_digest.py",),
    "httpx": (
        "http/client/joined_stream.py",
        "http/client/transport.py",
        "hub/client/",
        "hub/doctor/",
        "hub/monitoring/webhook.py",
        "reconcile/json_request.py",
        "cli/demo/",
    ),
    "psycopg": ("store/postgres/driver.py",),
    "redis": ("store/redis/connection.py",),
    "cryptography": ("http/stored/encryption.py",),
    "prometheus_client": ("http/metrics.py", "hub/monitoring/gauges.py", "hub/web/metrics.py", "metrics.py"),
    "opentelemetry": ("http/observer.py",),
    "pytest": ("testing/",),
    # Relational code is SQLAlchemy Core; what the schema is made with is needed only to make it.
    "sqlalchemy": (
        "hub/db/",
        "hub/events/",
        "hub/topics/",
        "hub/tasks/",
        "hub/ingest/",
        "hub/turns/",
        "hub/doctor/",
        "hub/security/tokens.py",
        "hub/audit/",
    ),
    "alembic": ("hub/db/migrate.py", "hub/db/migrations/"),
    # The hub is a FastAPI application; its parts are its own.
    "fastapi": ("hub/",),
    "starlette": ("hub/",),
    # LangChain, FastMCP and pydantic-ai describe tools by its models.
    "pydantic": ("hub/", "integrations/fastmcp.py", "integrations/langchain.py", "integrations/pydantic_ai.py"),
    "pydantic_core": ("integrations/pydantic_ai.py",),
    "anyio": ("hub/",),
    "uvicorn": ("hub/server/process.py", "hub/server/http_protocol.py", "hub/server/websocket_protocol.py"),
    "httptools": ("hub/server/http_protocol.py",),
    "websockets": ("hub/server/websocket_protocol.py",),
    "structlog": ("hub/web/request_log.py",),
    "jinja2": ("hub/console/rendering.py", "hub/reference/page.py"),
    "markdown_it": ("hub/reference/markdown.py",),
    "markupsafe": ("hub/reference/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    # Bytes: where they lie, what they are, how they arrive.
    "obstore": ("hub/blobs/s3.py", "hub/blobs/s3_owner.py", "reconcile/s3_object.py"),
    "magic": ("hub/media/",),
    "pylibmagic": ("hub/media/",),
    "python_multipart": ("hub/web/upload.py",),
    # Addresses as browsers read them.
    "ada_url": ("hub/ingest/normalize/url.py",),
    # Agents: one module for each engine and protocol.
    "mcp": ("integrations/mcp.py", "integrations/fastmcp.py"),
    "fastmcp": ("integrations/fastmcp.py",),
    "langchain": ("integrations/langchain.py",),
    "langchain_core": ("integrations/langchain.py", "hub/turns/brains/langgraph.py"),
    "langgraph": ("integrations/langchain.py", "hub/turns/brains/langgraph.py"),
    "pydantic_ai": ("integrations/pydantic_ai.py",),
    "agents": ("integrations/openai_agents.py",),
    "dbos": ("hub/turns/runners/dbos.py",),
    "hatchet_sdk": ("hub/turns/runners/hatchet.py",),
}

# The pure core: values in, values out.
PURE = "core"
IMPURE_MODULES = frozenset({
    "asyncio", "concurrent", "contextvars", "fcntl", "glob", "http", "io", "locale", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "platform", "queue", "random", "sched", "secrets", "select", "selectors",
    "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "urllib", "zoneinfo",
})  # fmt: skip
# By identity, to know what a value holds twice; nothing of that is in what it writes.
TELLS_PARTS_APART = "value.py"
IMPURE_CALLS = frozenset({
    "open", "print", "input", "exec", "eval", "__import__", "id", "now", "utcnow", "today", "uuid1", "uuid4", "urandom",
    "import_module", "localtime", "gmtime",
})  # fmt: skip

# A module is named for what it holds.
NAMELESS = frozenset({"utils", "util", "common", "helpers", "helper", "base", "manager", "managers", "models", "misc"})
# Longer modules are hard to keep in mind. Docstrings do not count. Tests are read one at a time.
LINES_MAX = {"src": 400, "tests": 600}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")

# Where time is pinned and everything is real: no waiting, no stand-ins, nothing left out.
STRICT_TESTS = ("core", "contract", "simulation")
LEFT_OUT = frozenset({"skip", "skipif", "xfail", "importorskip"})
WAITING = frozenset({"time.sleep"})
STAND_INS = frozenset({"mock", "unittest.mock", "pytest_mock", "freezegun", "time_machine"})


# Patterns that look as if they could take more than linear time, and why they do not.
LINEAR_ALL_THE_SAME = {
    r"<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>": "blanks follow one bracket each, so that each run of them is read once",
    r"(?:</\1\b[^>]*+(?:>|\Z)|\Z)": "the end of a text ends it, too: it never goes back",
}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def docstring_lines(node: ast.AST) -> int:
    """The number of lines that the docstring of this module, class or function takes."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return 0
    return (first.end_lineno or first.lineno) - first.lineno + 1 if isinstance(first.value.value, str) else 0


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Every imported module, at the top or inside a function; `from a import b` counts as `a.b`, which may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def parts_imported(tree: ast.AST) -> set[str]:
    """The parts of our own package that a module imports."""
    parts = set()
    for name in imports_of(tree):
        package, *rest = name.split(".")
        if package == "onceward":
            known = frozenset().union(*LAYERS)
            parts.add(rest[0] if rest and rest[0] in known else TOP)
    return parts


def layer(part: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part in parts)


def called_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr


Rule = Callable[[Path], None]


def each(paths: Sequence[Path]) -> Callable[[Rule], Callable[[], None]]:
    """Return one test that applies a rule to all of these; a test for each would take longer than the rule."""

    def all_of(rule: Rule) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{name_of(path)}: {error}")
            assert not broken, "\n".join(broken)

        return test

    return all_of


source = each(modules(SOURCE))
everything = each(modules(SOURCE) + modules(ROOT / "tests"))


@source
def test_no_module_imports_a_higher_layer(path: Path) -> None:
    part = part_of(path)
    if part == TOP:
        return
    imported = parts_imported(tree_of(path)) - {part}

    assert TOP not in imported, "it imports the public face, which imports everything"
    assert {other for other in imported if layer(other) > layer(part)} == set()


@each(modules(SOURCE / "hub"))
def test_topics_tasks_ingest_and_turns_share_only_lower_layers(path: Path) -> None:
    part = path.relative_to(SOURCE / "hub").parts[0]
    if part in STRANGERS | BELOW_STRANGERS:
        allowed = BELOW_STRANGERS | {part} if part in STRANGERS else BELOW_STRANGERS
        imported = {name.split(".")[2] for name in imports_of(tree_of(path)) if name.startswith("onceward.hub.")}

        assert imported - allowed == set()


def test_every_part_has_its_layer() -> None:
    parts = {part_of(path) for path in modules(SOURCE)} - {TOP}

    assert parts - frozenset().union(*LAYERS) == set()


@source
def test_a_third_party_package_is_imported_in_one_place(path: Path) -> None:
    outside = {name.split(".")[0] for name in imports_of(tree_of(path))} - sys.stdlib_module_names - {"onceward"}

    here = path.relative_to(SOURCE).as_posix()
    assert {package for package in outside if not here.startswith(DRIVERS.get(package, ("nowhere",)))} == set()


@each(modules(SOURCE / PURE))
def test_the_core_has_no_clock_no_randomness_no_files_and_no_async(path: Path) -> None:
    tree = tree_of(path)

    assert {name.split(".")[0] for name in imports_of(tree)} & IMPURE_MODULES == set()
    assert parts_imported(tree) <= {"core", "errors"}
    assert set(called_names(tree)) & IMPURE_CALLS <= ({"id"} if path.name == TELLS_PARTS_APART else set())
    assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree))


@everything
def test_a_module_has_a_meaningful_name_and_a_limited_length(path: Path) -> None:
    assert not {*path.relative_to(ROOT).with_suffix("").parts} & NAMELESS
    lines = len(path.read_text("utf-8").splitlines()) - sum(map(docstring_lines, ast.walk(tree_of(path))))
    assert lines <= LINES_MAX[path.relative_to(ROOT).parts[0]]


@source
def test_nothing_is_left_unfinished(path: Path) -> None:
    assert UNFINISHED.findall(path.read_text("utf-8")) == []


@source
def test_a_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


def test_the_public_package_only_re_exports_names() -> None:
    *body, version = tree_of(SOURCE / "__init__.py").body[1:]

    assert isinstance(version, ast.If)  # `__version__`, for the type checker and for those who ask
    assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in body)
    assert [
        node.targets[0].id for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ] == ["__all__"]


@source
def test_a_pattern_takes_linear_time(path: Path) -> None:
    """Exceptions are in LINEAR_ALL_THE_SAME, with a reason. A sender can choose the header that takes longest."""
    found = {
        f"line {line}: {pattern!r}: {'; '.join(why)}"
        for pattern, flags, line in patterns(tree_of(path))
        if (why := slow(pattern, flags)) and not any(known in str(pattern) for known in LINEAR_ALL_THE_SAME)
    }

    assert found == set()


SCRIPTS = sorted([*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.lua")])


@each(SCRIPTS)
def test_a_script_is_commented(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    comments = [line for line in lines if line.lstrip().startswith("--")]

    assert lines
    assert lines[0].startswith("--"), "the first line says what it is for"
    assert len(comments) * 20 >= len(lines)


@pytest.mark.parametrize("folder", STRICT_TESTS)
def test_strict_tests_do_not_sleep_and_use_no_mocks(folder: str) -> None:
    for path in modules(ROOT / "tests" / folder):
        tree = tree_of(path)
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}

        assert (names | set(imports_of(tree))) & (WAITING | STAND_INS) == set(), name_of(path)


@each(modules(ROOT / "tests"))
def test_no_test_is_skipped(path: Path) -> None:
    names = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}

    assert names & LEFT_OUT == set()


# The rules can fail: what each of these breaks is found.


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("from onceward.store import Store", {"store"}),
        ("from onceward import errors, open_ledger", {"errors", TOP}),
        ("import onceward", {TOP}),
        ("import onceward.core.claim", {"core"}),
        ("def f():\n    from onceward.ledger import Ledger", {"ledger"}),
        ("if TYPE_CHECKING:\n    from onceward.http.problem import problem", {"http"}),
        ("import json", set()),
    ],
)
def test_an_import_is_found_anywhere(text: str, parts: set[str]) -> None:
    assert parts_imported(ast.parse(text)) == parts


def test_a_call_is_found_on_any_object() -> None:
    tree = ast.parse("datetime.datetime.now(); uuid4(); answer.now; open('x')")

    assert set(called_names(tree)) == {"now", "uuid4", "open"}


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s*.*\s*", r"(a+)+", r"(?:ab|\wb)*c", r"\d*\s*\d*", r"(?:\w+,?)*", r"bytes\s*=\s*(\d*)\s*-\s*(\d*)", r"(?:a*)*",
        r"[ab]+x?[bc]+", r".*?x*.*", r"(?:\s|\w)*\s+$", r"\S+@\S+", r"[^=]*token[^=]*=", r"a*a*+", rb"\s+\w*\s+", r"x{9,999}x*",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_pattern_that_may_be_slow_is_found(pattern: str | bytes) -> None:
    assert slow(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s*=\s*", "a*b*", r"[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*", "[^,]*(?:,[^,]*)*", r"\w+@\d{1,3}\d{1,4}", r"\s*+\s*",
        "(?>a*)a*", "(?:a,)*", "[a-z]+[0-9]+", r'"(?:[^"\\]|\\.)*"', rb"[a-f]+-[a-f]+",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_pattern_that_takes_linear_time_is_not(pattern: str | bytes) -> None:
    assert slow(pattern) == []


def test_a_pattern_is_found_anywhere() -> None:
    text = "A = re.compile(r'a' r'b', re.I)\nB = tuple(re.compile(p) for p in ('c', 'd'))\nif re.search(f'{x}e', y): z"

    assert [pattern for pattern, _, _ in patterns(ast.parse(text))] == ["c", "d", "ab", "\ue000e"]
