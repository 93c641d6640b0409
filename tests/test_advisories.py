"""`make audit` fails for a vulnerable package, and for everything that it could not check."""

from __future__ import annotations

import datetime
import socket
from pathlib import Path

import pytest
from tests.advisories import ROOT, findings, lines, main, pins

ADVISORY = """\
id: PYSEC-2014-8
details: A cache in a shared folder.
affected:
- package: {{name: jinja2, ecosystem: PyPI}}
  ranges:
  - type: ECOSYSTEM
    events:
    - introduced: "0"
    - fixed: 2.7.2
aliases: [CVE-2014-1402]
modified: "{modified}"
"""


@pytest.fixture
def advisories(tmp_path: Path) -> Path:
    """A folder like the PyPA advisory database, with one advisory of today."""
    return with_advisory(tmp_path, datetime.datetime.now(datetime.UTC))


def with_advisory(folder: Path, modified: datetime.datetime) -> Path:
    package = folder / "vulns" / "jinja2"
    package.mkdir(parents=True)
    (package / "PYSEC-2014-8.yaml").write_text(ADVISORY.format(modified=modified.isoformat()))
    return folder


def requirements(folder: Path, *lines: str) -> str:
    file = folder / "some.txt"
    file.write_text("".join(f"{line} \\\n    --hash=sha256:{'0' * 64}\n" for line in lines))
    return str(file)


def test_a_vulnerable_package_fails_and_its_advisory_is_named(
    advisories: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also if its marker does not match this machine."""
    file = requirements(advisories, "Jinja2==2.4.1 ; sys_platform == 'win32'", "jinja2==3.1.6", "click==8.5.1")

    assert main([file, "--advisories", str(advisories)]) == 1
    shown = capfd.readouterr()
    assert "some.txt: 3 packages, 1 findings" in shown.out
    assert "jinja2 2.4.1: PYSEC-2014-8 CVE-2014-1402, fixed in 2.7.2" in shown.err


def test_a_service_that_does_not_answer_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/query"
    file = requirements(tmp_path, "jinja2==3.1.6")

    assert main([file, "--osv-url", url]) == 1
    shown = capfd.readouterr().err
    assert "could not be checked" in shown
    assert "make audit ADVISORIES=folder" in shown


def test_a_package_that_cannot_be_checked_fails() -> None:
    """pip-audit itself exits with 0 for a report like this."""
    report = {
        "dependencies": [
            {"name": "a", "skip_reason": "not found on PyPI: a (1)"},
            {"name": "b", "version": "1", "vulns": []},
        ]
    }

    found = findings([("a", "1"), ("b", "1"), ("b", "2")], report)

    assert [(one.package, one.reason) for one in found] == [
        ("a 1", "could not be checked: not found on PyPI"),
        ("b 2", "could not be checked: it is not in the report"),
    ]


def test_packages_with_the_same_finding_share_a_line() -> None:
    """Without the network, hundreds of equal lines would hide what to do."""
    packages = [(f"package-{number}", "1") for number in range(9)]
    report = {"dependencies": [{"name": name, "skip_reason": f"not found: {name} (1)"} for name, _ in packages]}

    (line,) = lines(findings(packages, report))

    assert line.startswith("package-0 1, package-1 1, ")
    assert line.endswith(" and 4 more: could not be checked: not found")


def test_a_service_that_knows_all_packages_passes(advisories: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = requirements(advisories, "jinja2==3.1.6", "click==8.5.1")

    assert main([file, "--advisories", str(advisories)]) == 0
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("onceward: some.txt: 2 packages, 0 findings\n", "")


def test_old_advisories_prove_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = with_advisory(tmp_path, datetime.datetime(2024, 10, 10, tzinfo=datetime.UTC))
    empty = tmp_path / "empty.txt"
    empty.write_text("")

    assert main([str(empty), "--advisories", str(folder)]) == 1
    shown = capfd.readouterr().err
    assert "the newest advisory is from 2024-10-10" in shown
    assert "has no pinned packages" in shown


def test_every_compiled_file_is_audited_with_all_its_packages() -> None:
    for file in (ROOT / "requirements").glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if line[:1].isalnum()]
        assert len(set(pins(file))) == len(lines) > 0, file.name
