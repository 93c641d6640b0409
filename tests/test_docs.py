"""The documents are tested: their code runs and prints what they say, their links work, the tests that they name
exist, and nothing that a user can write, set or catch is left out of them.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import inspect
import json
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import yaml
from docs import build_site
from tests.markdown import DO_NOT_RUN, PRINTS, RUN, anchors, blocks, prose, section, targets, text_of

import onceward
import onceward.http
import onceward.store
from onceward import Ledger, errors, open_ledger, testing, verdict
from onceward.core import key, outcome, value
from onceward.core.claim import Entry, Status
from onceward.http import Operation, Rule, problem
from onceward.http.keyed.admission import Admission
from onceward.http.keyed.options import MiddlewareOptions
from onceward.http.metrics import ProcessCounts
from onceward.ledger.blocking import Blocking
from onceward.ledger.run import CurrentClaim
from onceward.ledger.terms import Effect, Terms
from onceward.ledger.transaction import Bound
from onceward.store.redis import connection
from onceward.testing import StoreContract

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), ROOT / "examples/README.md"])
# For coding agents, inside the package. It is not part of the site: no page links to it, and it links to no page.
SKILL = ROOT / "src/onceward/.agents/skills/onceward/SKILL.md"
WITH_CODE = [
    *(ROOT / "README.md", SKILL, ROOT / "docs/tutorial.md", ROOT / "docs/concepts.md"),
    *sorted(ROOT.glob("docs/guides/*.md")),
    *sorted(ROOT.glob("docs/frameworks/[a-z]*.md")),
    *sorted(ROOT.glob("docs/migrate/*.md")),
]
# Django has one configuration for each process.
IN_ITS_OWN_PROCESS = {"django.md"}
DECISIONS = sorted(ROOT.glob("docs/decisions/[0-9]*.md"))
pages = pytest.mark.parametrize("page", [*PAGES, SKILL], ids=lambda page: str(page.relative_to(ROOT)))

FENCES = {RUN, DO_NOT_RUN, "sh", "json", "toml", "mermaid", ""}
NAMED_TEST = re.compile(r"`((?:tests|src|examples)/[\w/]+\.py)(?:::(\w+))?`")


def code_words(text: str) -> set[str]:
    """Every word that is written as code, with its dots and without."""
    dotted = {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w.+-]*\w", span)}
    return dotted | {part for word in dotted for part in word.split(".")}


def table(text: str) -> dict[str, list[str]]:
    """The rows of the tables in a text, by each name in code that the first cell has."""
    rows: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *others = line.strip("| ").split(" | ")
            cells = [other.strip("` ") for other in others]
            rows |= dict.fromkeys(re.findall(r"`([^`]+)`", first), cells)
    return rows


REFERENCE = ROOT / "docs" / "reference.md"
HTTP_GUIDE = ROOT / "docs" / "guides" / "http.md"


# The code in the documents.


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_runs_and_prints_the_shown_output(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the blocks as one module, on their original lines, so that a traceback points into the document."""
    runnable = [block for block in blocks(page) if block.kind == RUN]
    lines: list[str] = []
    for block in runnable:
        lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    name = f"{page.stem.lower()}_page"
    file = tmp_path / f"{name}.py"
    file.write_text("\n".join(lines), "utf-8")
    expected = [line for block in runnable for line in PRINTS.findall(block.text)]
    assert expected
    if page.name in IN_ITS_OWN_PROCESS:
        done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout.splitlines(), done.returncode) == (expected, 0), done.stderr
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("logging.root.handlers", [])  # a framework's would outlive the test, and what they write to not

    spec.loader.exec_module(module)
    for left_open in [found for found in vars(module).values() if isinstance(found, Ledger)]:
        left_open.close()

    assert capsys.readouterr().out.splitlines() == expected


@pages
def test_every_block_has_a_language_and_code_that_is_not_run_is_valid_python(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in FENCES
        if block.kind in {RUN, DO_NOT_RUN}:
            ast.parse(block.text)
        if block.kind == DO_NOT_RUN:
            before = text_of(page).splitlines()[: block.line - 1]
            assert "Not run here, because " in " ".join(before[-4:])


def test_the_skill_has_the_front_matter_of_its_format() -> None:
    """Of the Agent Skills format: a name equal to its folder, and a description by which an agent selects it."""
    _, front, _ = text_of(SKILL).split("---\n", 2)
    fields = yaml.safe_load(front)

    assert fields.keys() == {"name", "description"}
    assert fields["name"] == SKILL.parent.name == "onceward"
    assert 0 < len(fields["description"]) <= 1024
    assert len(re.findall(r"^## Recipe \d: ", text_of(SKILL), re.MULTILINE)) == 5
    assert len(text_of(SKILL).splitlines()) < 500


# Links, paths and tests that the documents name.


@pages
def test_every_link_has_a_target(page: Path) -> None:
    for target, anchor in targets(page):
        assert target.is_file(), f"{page.name} links to {target}"
        assert target.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(target), f"{page.name} links to {target.name}#{anchor}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [target for target, _ in targets(page)]

    assert set(PAGES) - reached == set()


def linked(page: Path) -> set[Path]:
    return {target for target, _ in targets(page)}


def test_every_page_for_users_is_on_the_map_of_the_documents_and_in_llms_txt() -> None:
    pages = {page for page in PAGES if "decisions" not in page.parts} - {ROOT / "docs/README.md"}
    pages -= {*ROOT.glob("bench/*.md")} - {ROOT / "bench/results.md"}
    for_developers = {ROOT / name for name in ("CONTRIBUTING.md", "docs/release.md", "docs/design-documents.md")}
    for_developers |= {ROOT / "README.md", *ROOT.glob("bench/*.md")}

    assert pages - linked(ROOT / "docs/README.md") - {ROOT / "docs/frameworks/README.md"} == set()
    assert pages - for_developers - linked(ROOT / "docs/llms.txt") == set()
    for target, _ in targets(ROOT / "docs/llms.txt"):
        assert target.is_file()


def test_every_page_on_the_map_is_in_the_navigation_of_the_site() -> None:
    def files(entries: list[dict[str, object]]) -> Iterator[str]:
        for entry in entries:
            for target in entry.values():
                if isinstance(target, str):
                    yield target
                else:
                    yield from files(cast("list[dict[str, object]]", target))

    nav = list(files(tomllib.loads(text_of(ROOT / "zensical.toml"))["project"]["nav"]))
    mapped = {path.relative_to(ROOT).as_posix() for path in linked(ROOT / "docs/README.md") if path.suffix == ".md"}

    assert len(nav) == len(set(nav))
    assert set(nav) == mapped | {"docs/README.md"}


def test_the_site_has_every_file_that_its_pages_link_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only pages and pictures: `make docs` follows the links of the built pages, and takes a minute."""
    monkeypatch.setattr(build_site, "SOURCE", tmp_path)
    build_site.stage()
    site = {ROOT / path for path in build_site.pages()}

    assert {ROOT / file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()} == site
    assert any(page.suffix == ".png" for page in site)
    for page in site:
        if page.suffix == ".md":
            assert linked(page) <= site, page.name
        else:
            assert (tmp_path / page.relative_to(ROOT)).read_bytes() == page.read_bytes(), page.name


def test_the_figures_of_the_comparison_are_those_of_the_benchmark() -> None:
    results = text_of(ROOT / "bench/results.md")
    comparison = section(ROOT / "docs/comparison.md", "Speed")
    versions = re.findall(r"(?:idemkit|call4agents|DBOS) \d[\d.]*\d", comparison)

    rows = {
        "SQLite, synchronous FULL": "SQLite FULL",
        "PostgreSQL": "PostgreSQL",
        "Redis, AOF always": "Redis, AOF always",
    }
    shown = dict.fromkeys(rows, 0)
    for line in comparison.splitlines():
        store, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if store in rows:
            contestants = ("**Onceward, awaited**", "idemkit", "call4agents", "DBOS")
            for contestant, cell in zip(contestants, cells, strict=True):
                (measured,) = re.findall(
                    rf"^\| {re.escape(rows[store])} \| {re.escape(contestant)} \|[^|]*\| ([-\d,]+)",
                    results,
                    re.MULTILINE,
                )
                assert cell == (measured if measured != "-" else "—"), f"{store}, {contestant}"
                shown[store] += 1

    assert set(shown.values()) == {4}
    assert versions
    assert all(version in results for version in versions)


# Each result of the run of the accidents, and the words of the README for it.
ACCIDENTS = {
    r"1 payment, (\d results)": r"1 payment, \1",
    r"1 payment, 1 result, 7 times `\w+`": "1 payment, 7 errors",
    r"2 payments; .*": "2 payments",
    r"1 payment; `(?:InDoubt|EffectInDoubt)`.*|.*`NotRecordable`, then `EffectInDoubt`": "1 payment, in doubt",
    r"1 payment; `EffectPending`, then `EffectPending`": "1 payment, pending",
    r"1 payment; `EffectFailed`": "1 payment, failed",
    r"1 payment; `EffectUnknown`.*": "1 payment, unknown",
    r"1 payment; `(?:IdempotencyAlreadyInProgressError|HTTP 409)`.*": "1 payment; blocked until the record expires",
    r"1 payment; `ConnectionResetError`": "1 payment; the exception is the recorded outcome",
    r"1 payment; `(?:KeyReused|PayloadMismatch|KeyConflict)`": "refused",
    r"1 payment; result": "returns the result of the first amount",
    r"1 payment; result, then .*": "1 payment; the caller gets the result",
    r"1 payment; `(?:TypeError|IdempotencyPersistenceLayerError)`, then .*": "1 payment; the caller gets an error",
}


def summary_of(seen: str) -> str:
    """Return the words of the README for a cell of the run."""
    (summary,) = [found.expand(text) for pattern, text in ACCIDENTS.items() if (found := re.fullmatch(pattern, seen))]
    return summary


def accidents(text: str) -> dict[str, list[str]]:
    """The rows of a table of accidents, by library, without marks and notes."""
    lines = [re.sub(r"[*]| \(.*?\)", "", line).strip("| ") for line in text.splitlines() if line.startswith("| ")]
    rows = [line.split(" | ") for line in lines]
    return {first: cells for first, *cells in rows if any("1 payment" in cell for cell in cells)}


def test_the_accidents_in_the_readme_are_those_of_the_run() -> None:
    readme = section(ROOT / "README.md", "How it compares")
    run = accidents(text_of(ROOT / "bench/comparison.md"))

    assert len(run) == 7
    assert accidents(readme) == {
        library.rpartition(" ")[0]: [summary_of(cell) for cell in cells[:5]] for library, cells in run.items()
    }
    assert all(library in " ".join(readme.split()) for library in run)


@functools.cache
def functions(file: Path) -> dict[str, str]:
    """The functions and methods of a file, with their docstrings."""
    tree = ast.parse(text_of(file))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {node.name: ast.get_docstring(node) or "" for node in found}


@pages
def test_every_named_test_exists(page: Path) -> None:
    for path, name in NAMED_TEST.findall(text_of(page)):
        assert (ROOT / path).is_file(), path
        assert not name or name in functions(ROOT / path), f"{path}::{name}"


MAPS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]
maps = pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)


def named_paths(page: Path) -> set[str]:
    """Every path of a module or a folder that is written as code, and every path of a module in a diagram."""
    words = {word for span in re.findall(r"`([^`\n]+)`", prose(page)) for word in span.split() if "<" not in word}
    words |= {word.strip("│,:") for block in blocks(page) for word in block.text.split() if "/" in word[:-1]}
    return {word for word in words if re.fullmatch(r"[\w.-][\w./-]*(?:\.py|\.sql|\.lua|/)", word)}


@maps
def test_every_named_path_exists(page: Path) -> None:
    paths = named_paths(page)
    missing = {
        path for path in paths if not any((below / path).exists() for below in (ROOT, ROOT / "src" / "onceward"))
    }

    assert len(paths) > 10
    assert missing == set()


def test_the_architecture_shows_every_folder_of_the_package() -> None:
    (tree,) = [block for block in blocks(ROOT / "ARCHITECTURE.md") if block.text.startswith("src/onceward/\n")]
    shown: set[str] = set()
    way: list[str] = []
    for line in tree.text.splitlines()[1:]:
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        way = [*way[:depth], name.rstrip("/")]
        shown.add("/".join(way))
    source = ROOT / "src" / "onceward"

    assert shown == {str(file.parent.relative_to(source)) for file in source.glob("*/**/__init__.py")}


HEADER_ROWS = ("| --- |", "| effect |", "| failure |", "| guarantee |", "| rule |", "| when |")


@pytest.mark.parametrize("name", ["guarantees.md", "what-happens-when.md"])
def test_every_guarantee_names_its_test(name: str) -> None:
    for line in text_of(ROOT / "docs" / name).splitlines():
        if line.startswith("| ") and not line.startswith(HEADER_ROWS):
            assert any(test for _, test in NAMED_TEST.findall(line)), f"no test: {line}"


def test_every_store_rule_names_tests_of_that_rule() -> None:
    rules = re.findall(r"^ *(\d+)\. ([A-Z][\w ]+)", inspect.getdoc(onceward.store) or "", re.MULTILINE)
    rows = [line for line in section(ROOT / "docs" / "guarantees.md", "Store contract").splitlines() if line[:1] == "|"]
    for number, _ in rules:
        (row,) = [row for row in rows if row.startswith(f"| {number} ")]
        named = [functions(ROOT / path)[name] for path, name in NAMED_TEST.findall(row) if "/rules/" in path]
        assert named
        assert all(docstring.startswith(f"Rule {number}.") for docstring in named), row
    assert len(rules) == 9


def test_the_contract_named_in_the_guarantees_is_the_one_that_runs() -> None:
    files = {Path(inspect.getfile(kind)) for kind in StoreContract.__mro__ if kind is not object}

    # Of the package that runs, which may be an installed wheel.
    assert set(Path(testing.__file__).parent.glob("rules/[a-z]*.py")) <= files


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    listed = text_of(ROOT / "docs" / "decisions" / "README.md")
    for number, page in enumerate(DECISIONS, 1):
        assert text_of(page).startswith(f"# {number:04d}: ")
        assert page.name.startswith(f"{number:04d}-")
        assert f"]({page.name})" in listed


# Completeness of the reference.


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_public_name_is_in_the_reference() -> None:
    words = code_words(text_of(REFERENCE))

    assert set(onceward.__all__) <= words
    assert set(testing.__all__) <= words
    assert public(Ledger) | public(Blocking) <= words
    assert public(CurrentClaim) - {"suspend"} | {"key"} <= words
    assert public(Bound) - {"to"} <= words
    assert set(Effect) | set(Status) <= words
    assert {"committed", "not_committed", "pending", "unknown"} <= words
    assert {f"Final.{reason.name}" for reason in verdict.Final} <= words


def error_classes() -> list[type[errors.OncewardError]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return [kind for _, kind in found if issubclass(kind, errors.OncewardError)]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_reference_with_its_code_and_what_to_do(kind: type[errors.OncewardError]) -> None:
    text = section(REFERENCE, "Errors")
    if kind is errors.OncewardError:
        assert f"`{kind.__name__}` (code `{kind.code}`)" in text
        return

    code, retryable, advice = table(text)[kind.__name__]

    assert code == kind.code
    assert retryable == ("yes" if kind.retryable else "no")
    assert advice.rstrip().count(".") >= 1, "it says what to do"


def written(default: object) -> str:
    return f"{default:.15g}" if isinstance(default, int | float) and not isinstance(default, bool) else str(default)


def test_every_option_of_open_ledger_is_in_the_reference_with_its_default() -> None:
    rows = table(section(REFERENCE, "Open a ledger"))
    for name, parameter in inspect.signature(open_ledger).parameters.items():
        expected = "required" if parameter.default is parameter.empty else written(parameter.default)
        assert rows[name][0] == expected, name


def test_every_option_of_run_and_once_is_in_the_reference_with_its_default() -> None:
    rows = table(section(REFERENCE, "Options of run and once"))
    for field in dataclasses.fields(Terms):
        if field.default is dataclasses.MISSING:
            assert rows[field.name][0] == "required"
        elif field.default is None:
            assert rows[field.name][0] in {"none", "the ledger's", "the declared return type"}
        else:
            assert rows[field.name][0] == written(field.default)


def test_every_public_name_of_http_is_in_the_reference() -> None:
    words = code_words(section(REFERENCE, "HTTP"))

    assert set(onceward.http.__all__) <= words
    assert public(Operation) - {"let_bind"} | {"key", "attempt", "version"} <= words
    assert {field.name for field in dataclasses.fields(Rule) if field.init} <= words


def test_every_option_of_the_middleware_is_in_its_guide_with_its_default() -> None:
    rows = table(section(HTTP_GUIDE, "Options"))
    guard = Admission("memory:", {})
    route = {field.name: getattr(guard.default, field.name) for field in dataclasses.fields(Rule) if field.init}
    own = {"max_stream_seconds": guard.max_stream_seconds, "enabled": guard.enabled}
    guard.ledger.close()

    assert set(MiddlewareOptions.__annotations__) | route.keys() == rows.keys()
    for name, default in {**route, **own}.items():
        if name in MiddlewareOptions.__annotations__:
            assert rows[name][0] == (str(default) if isinstance(default, bool) else written(default)), name
            assert rows[name][1].startswith("(r) ") == (name in route), name


def test_every_problem_is_in_the_reference_and_in_the_guide() -> None:
    of_the_middleware = [
        *(problem.busy(), problem.mismatch(), problem.in_doubt(), problem.not_kept(), problem.too_large(1)),
        *(problem.unavailable(), problem.wrong_digest(), problem.key_required(), problem.principal_changed()),
    ]
    codes = {json.loads(answer.body)["code"] for answer in of_the_middleware}

    assert codes | {*problem.CODES.values()} <= table(section(REFERENCE, "HTTP")).keys()
    assert codes <= code_words(section(HTTP_GUIDE, "Request lifecycle"))


def test_every_metric_and_log_event_is_in_the_reference_and_in_the_guide() -> None:
    metrics = {f"{one.name}_total" if one.type == "counter" else one.name for one in ProcessCounts().collect()}
    events = set(re.findall(r'log_event\(_log\.\w+, "(\w+)"', text_of(ROOT / "src/onceward/http/observer.py")))

    assert len(events) == 4
    assert metrics | events <= code_words(section(REFERENCE, "HTTP"))
    assert metrics | events <= code_words(section(HTTP_GUIDE, "Observability"))


def test_every_store_scheme_is_in_the_reference_and_in_the_readme() -> None:
    tree = ast.parse(text_of(ROOT / "src/onceward/store/open.py"))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.MatchValue)]
    schemes = {node.value for node in values if isinstance(node, ast.Constant) and isinstance(node.value, str)}

    assert len(schemes) >= 4
    assert schemes <= table(section(REFERENCE, "Store URLs")).keys()
    assert all(f"`{scheme}:" in section(ROOT / "README.md", "Stores") for scheme in schemes)


def test_every_option_of_a_redis_url_is_in_the_reference() -> None:
    assert {"prefix", "volatile", *connection._OPTIONS} <= code_words(section(REFERENCE, "Store URLs"))


def test_every_make_target_is_described() -> None:
    made = set(re.findall(r"^([a-z-]+):.*##", text_of(ROOT / "Makefile"), re.MULTILINE))

    assert made
    assert made == set(re.findall(r"`make ([a-z-]+)` \|", text_of(ROOT / "CONTRIBUTING.md")))
    assert made <= code_words(section(REFERENCE, "Make targets"))


def test_every_column_of_the_table_is_in_the_reference() -> None:
    db = sqlite3.connect(":memory:")
    db.executescript(
        "".join(text_of(ROOT / "src/onceward/store/sqlite" / one) for one in ("schema.sql", "schema_2.sql"))
    )
    columns = {row[1] for row in db.execute("PRAGMA table_info(platform_idempotency_keys)")}
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    text = section(REFERENCE, "SQL table")

    assert columns == table(text).keys()
    assert tables <= code_words(text)
    # Stored as several columns, or under another name.
    assert {field.name for field in dataclasses.fields(Entry)} - {"outcome", "recovery", "key_basis"} <= columns


def test_the_limits_are_those_of_the_code() -> None:
    text = section(REFERENCE, "Limits")
    limits = [key.KEY_BYTES_MAX, key.SCOPE_BYTES_MAX, key.NOTE_BYTES_MAX, key.LABEL_BYTES_MAX, value.NESTING_MAX]
    limits += [onceward.store.PAGE_MAX, onceward.store.BATCH_WRITES_MAX]

    assert all(re.search(rf"\b{limit:,}\b", text) for limit in limits)
    assert f"{outcome.INLINE_BYTES_MAX // 1024} KiB" in text
    assert f"{onceward.store.BATCH_BYTES_MAX // 1024 // 1024} MiB" in text


def test_the_changelog_has_the_current_version() -> None:
    version = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["version"]

    assert re.search(rf"^## .*\b{re.escape(version)}\b", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)


def test_every_dependency_has_its_reason() -> None:
    reasons = code_words(text_of(ROOT / "docs/decisions/0009-dependencies.md"))
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    for file in ROOT.glob("requirements/*.in"):
        wanted += [line for line in text_of(file).splitlines() if line and not line.startswith("#")]
    names = {re.split(r"[\[<>=~; ]", requirement)[0] for requirement in wanted} - {project["name"]}

    assert names <= reasons
