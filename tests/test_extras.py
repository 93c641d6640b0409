"""Without the packages of an extra, the error names the extra to install."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.forked_python import forked_python
from tests.test_examples import IMPORTS

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
SOURCE = PYPROJECT.parent / "src" / "onceward"

_BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
# The process is forked from one that has imported some packages: it forgets this one, and imports Onceward again.
for name in list(sys.modules):
    if name.split(".")[0] in ("onceward", sys.argv[1]):
        del sys.modules[name]
"""
_MIDDLEWARE = "from onceward import IdempotencyMiddleware as M; M(None, store='memory:', "
_COMMAND = "import sys; from onceward.cli import main; sys.exit(main("

# The missing package, the code that needs it, and its extra.
NEEDS = [
    ("psycopg", "from onceward import open_ledger; open_ledger('postgresql://h/d')", "postgres"),
    ("psycopg", "from onceward.hub.db.engine import open_database; open_database('postgresql://h/d')", "postgres"),
    ("psycopg", f"{_COMMAND}['schema', 'print', '--ledger', 'postgresql://']))", "postgres"),
    ("redis", "from onceward import open_ledger; open_ledger('redis://h')", "redis"),
    ("httpx", "import onceward.http.client", "client"),
    ("httpx", "import onceward.hub.client", "client"),
    ("httpx", "from onceward.reconcile import http_get; http_get('https://host/{key}')", "client"),
    ("httpx", "from onceward.reconcile import stripe; stripe('sk_test_1')", "client"),
    ("obstore", "from onceward.reconcile import s3_object; s3_object('s3://bucket/{key}')", "s3"),
    ("prometheus_client", "import onceward.http.metrics", "metrics"),
    ("prometheus_client", f"{_MIDDLEWARE}metrics=object())", "metrics"),
    ("cryptography", f"{_MIDDLEWARE}encryption_keys=[b'k' * 32])", "crypto"),
    ("obstore", "from onceward.hub.blobs.open import open_blobs; open_blobs('s3://bucket')", "s3"),
    ("click", f"{_COMMAND}['config']))", "hub"),
    ("uvicorn", f"{_COMMAND}['serve', '--port', '0', '--data-dir', sys.argv[2]]))", "hub"),
    ("fastapi", "import onceward.hub.app", "hub"),
    *(
        ("sqlalchemy", f"import {module}", "hub")
        for module in (
            "onceward.hub.db.engine",
            "onceward.hub.db.migrate",
            "onceward.hub.ingest.entries.insert",
            "onceward.hub.ingest.entries.schema",
            "onceward.hub.tasks",
            "onceward.hub.topics",
            "onceward.turns.runners.dbos",
            "onceward.turns.runners.hatchet",
        )
    ),
    ("langchain", "import onceward.integrations.langchain", "langchain"),
    ("pydantic_ai", "import onceward.integrations.pydantic_ai", "pydantic-ai"),
    ("agents", "import onceward.integrations.openai_agents", "openai-agents"),
    ("dbos", "import onceward.turns.runners.dbos", "dbos"),
    ("hatchet_sdk", "import onceward.turns.runners.hatchet", "hatchet"),
]


@pytest.mark.parametrize(("missing", "program", "extra"), NEEDS)
def test_an_error_names_the_missing_extra(
    missing: str, program: str, extra: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("data")
    command = [forked_python(*IMPORTS), "-c", f"{_BLOCK}\n{program}", missing, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=60)

    # A command that is given a store without its driver has wrong input; everything else has failed.
    assert done.returncode == (2 if "'schema'" in program else 1)
    assert f"pip install 'onceward[{extra}]'" in done.stderr.splitlines()[-1]


def test_the_extra_of_a_runner_installs_everything_the_runner_imports() -> None:
    extras = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]["optional-dependencies"]

    for runner in ("dbos", "hatchet"):
        brought = [need for need in extras[runner] if need.startswith("onceward[")]
        assert any("hub" in need for need in brought), f"onceward[{runner}] does not bring SQLAlchemy"


def test_a_checkout_that_is_not_installed_names_its_folder(tmp_path: Path) -> None:
    """Without site-packages the package has no metadata, as in a checkout that is only on Python's path."""
    checkout = tmp_path / "my checkout"
    (checkout / "src" / "onceward").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    program = "import sys; sys.path.append(sys.argv[1]); import errors; print(errors.install_command('postgres'))"
    for name in ("errors.py", "py.typed"):
        (checkout / "src" / "onceward" / name).write_bytes((SOURCE / name).read_bytes())
    command = [sys.executable, "-I", "-S", "-c", program, str(checkout / "src" / "onceward")]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert shlex.split(done.stdout) == ["pip", "install", "--editable", f"{checkout}[postgres]"]


def test_one_function_writes_the_command_that_installs_an_extra() -> None:
    found = []
    for file in SOURCE.rglob("*.py"):
        if "install" not in (text := file.read_text("utf-8")):
            continue
        tree = ast.parse(text)
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{file.relative_to(SOURCE)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in prose and "pip install" in str(node.value)
        ]

    assert {place.partition(":")[0] for place in found} == {"errors.py"}, f"use errors.install_command: {found}"
