"""The threat model names a test for every control, and SECURITY.md lists everything that is stored."""

from __future__ import annotations

import re
from pathlib import Path

from tests.markdown import section
from tests.test_docs import NAMED_TEST, functions

from onceward.hub.db.tables import metadata_on

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "docs" / "threat-model.md"
SECURITY = ROOT / "SECURITY.md"
LEDGER_TABLES = {"platform_idempotency_keys", "platform_idempotency_chunks", "platform_idempotency_meta"}


def rows(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    heads = {number - 1 for number, line in enumerate(lines) if line[0].startswith("---")}
    return [line for number, line in enumerate(lines) if number not in heads and not line[0].startswith("---")]


def test_every_threat_has_a_control_and_every_control_a_test() -> None:
    found = rows(section(MODEL, "Threats and controls"))

    assert len(found) > 40
    for threat, control, tests in found:
        named = NAMED_TEST.findall(tests)
        assert threat
        assert control
        assert named, f"no test: {threat}"
        assert [(path, name) for path, name in named if name not in functions(ROOT / path)] == []


def test_every_actor_has_threats_of_their_own() -> None:
    actors = {row[0].split()[0] for row in rows(section(MODEL, "Actors"))}
    heads = re.findall(r"^### (.+)$", section(MODEL, "Threats and controls"), re.MULTILINE)
    plurals = {"stranger": "Strangers", "web": "Web", "principal": "Principals", "sender": "Senders", "model": "Models"}
    plurals |= {"user": "Users", "person": "Persons", "supplier": "Suppliers"}

    assert {plurals[actor] for actor in actors} == {head.split()[0] for head in heads}


def test_every_parser_that_the_model_names_exists() -> None:
    paths = re.findall(r"`(src/[\w/.]+)`", section(MODEL, "Entry points"))

    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_security_lists_every_table() -> None:
    stored = section(SECURITY, "Data stored unencrypted")
    listed = {name for row in rows(stored) for name in re.findall(r"`([\w.]+)`", row[0])}

    assert metadata_on(is_sqlite=False).tables.keys() | LEDGER_TABLES <= listed
