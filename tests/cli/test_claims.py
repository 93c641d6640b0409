"""`onceward claims`: an operator sees what is in doubt and ends it, once, by what they looked at."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Onceward

from onceward import Ledger, errors, open_ledger
from onceward.core.claim import Claim

SCOPE = "call"


@pytest.fixture
def ledger(onceward: Onceward) -> Iterator[Ledger]:
    """The ledger that the command works on, as an application on the same store has it."""
    onceward.text("task", "add", "so that there is a data folder")
    url = f"sqlite:///{onceward.blobs.parent.absolute()}/ledger.db"
    with open_ledger(url, namespace="idempotency") as ledger:
        yield ledger


@pytest.fixture
def key() -> str:
    # The hub is shared by all of these tests.
    return f"charge:{uuid.uuid4()}"


def doubt(ledger: Ledger, key: str, note: str = "the line broke") -> int:
    claim = ledger.blocking.begin(SCOPE, key, {"amount": 10}, repeatable=False)
    assert isinstance(claim, Claim)
    assert ledger.blocking.doubt(claim, note)
    return claim.version


def charge(ledger: Ledger, key: str) -> object:
    def effect() -> object:
        raise AssertionError("it must not run again")

    return ledger.blocking.run(key, effect, fingerprint={"amount": 10}, effect="irreversible")


def test_what_is_in_doubt_is_listed_with_what_was_said_of_it(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)

    (found,) = [
        one
        for one in onceward.json("claims", "list", "--status", "in_doubt", "--oldest")["claims"]
        if one["key"] == key
    ]
    printed = onceward.text("claims", "list", "--status", "in_doubt", "--scope", SCOPE, "--limit", "500")

    assert (found["scope"], found["version"], found["note"]) == (SCOPE, version, "the line broke")
    assert (found["status"], found["repeatable"], found["lease_until"]) == ("in_doubt", False, None)
    assert key in printed


def test_the_oldest_come_first(onceward: Onceward, ledger: Ledger) -> None:
    keys = [f"charge:{uuid.uuid4()}" for _ in range(5)]
    for key in keys:
        doubt(ledger, key)

    listed = [one["key"] for one in onceward.json("claims", "list", "--oldest", "--limit", "500")["claims"]]

    assert [key for key in listed if key in keys] == keys


def test_a_monitor_sees_by_the_exit_code(onceward: Onceward, ledger: Ledger, key: str) -> None:
    scope = f"of {key}"
    claim = ledger.blocking.begin(scope, key, None, repeatable=False)
    assert isinstance(claim, Claim)
    watch = ("claims", "list", "--scope", scope, "--fail-if-any", "in_doubt")

    assert onceward(*watch).code == 0
    assert ledger.blocking.doubt(claim)
    assert onceward(*watch).code == 3


def test_a_doubt_is_ended_by_what_happened(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)
    with pytest.raises(errors.InDoubt):
        charge(ledger, key)

    told = onceward.json(
        "claims", "resolve", SCOPE, key, "--version", str(version), "--committed", "--value", '{"charge": "ch_1"}',
        "--reason", "found in the journal",
    )  # fmt: skip

    assert charge(ledger, key) == {"charge": "ch_1"}
    assert (told["status"], told["outcome"]["value"]) == ("completed", {"charge": "ch_1"})
    assert onceward.json("claims", "show", SCOPE, key) == told
    actor = "local" if "--hub" in onceward.where else ""
    assert told["note"].startswith(f"committed by {actor}")
    assert told["note"].endswith(": found in the journal")


def test_what_certainly_did_not_happen_may_run_again(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)

    onceward.text("claims", "resolve", SCOPE, key, "--version", str(version), "--not-committed", "--reason", "I asked")

    fingerprint = {"amount": 10}
    assert ledger.blocking.run(key, lambda: "ran", fingerprint=fingerprint, effect="irreversible") == "ran"


def test_a_claim_that_is_not_the_one_looked_at_is_left_alone(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)
    resolve = ("claims", "resolve", SCOPE, key, "--committed", "--reason", "r", "--version")

    other = onceward(*resolve, str(version + 1))
    assert (other.code, f"in_doubt with version {version}" in other.err) == (1, True)
    onceward.text(*resolve, str(version))
    again = onceward(*resolve, str(version))
    assert (again.code, "the claim is completed" in again.err) == (1, True)
    assert charge(ledger, key) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--committed", "--value", "{", "--reason", "r"), "expected JSON"),
        (("--not-committed", "--value", "1", "--reason", "r"), "goes with the verdict committed"),
        (("--committed", "--reason", " "), "must not be blank"),
        (("--committed", "--value", json.dumps("x" * 70_000), "--reason", "r"), "larger than 65536 bytes"),
        (("--committed", "--not-committed", "--reason", "r"), "exactly one of"),
        (("--committed",), "Missing option '--reason'"),
    ],
    ids=["no JSON", "a value of nothing", "no reason", "too large", "both", "reason left out"],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    onceward: Onceward, ledger: Ledger, key: str, arguments: tuple[str, ...], said: str
) -> None:
    version = doubt(ledger, key)

    done = onceward("claims", "resolve", SCOPE, key, "--version", str(version), *arguments)

    assert (done.code, said in done.err) == (2, True), done.err
    entry = ledger.blocking.read(SCOPE, key)
    assert entry is not None
    assert entry.status == "in_doubt"


def test_a_claim_that_nobody_made_cannot_be_shown_or_resolved(onceward: Onceward, ledger: Ledger) -> None:
    assert ledger.blocking.read(SCOPE, "nobody") is None
    for command in (
        ("show", SCOPE, "nobody"),
        ("resolve", SCOPE, "nobody", "--version", "1", "--committed", "--reason", "r"),
    ):
        done = onceward("claims", *command)
        assert (done.code, "there is no claim with this key" in done.err) == (1, True)


def test_what_is_past_its_retention_is_purged(onceward: Onceward, ledger: Ledger, key: str) -> None:
    claim = ledger.blocking.begin(SCOPE, key, None, repeatable=True)
    assert isinstance(claim, Claim)
    assert ledger.blocking.fail(claim, retain_seconds=0)

    def rows() -> int:
        with closing(sqlite3.connect(onceward.blobs.parent / "ledger.db")) as file:
            counted = file.execute("SELECT count(*) FROM platform_idempotency_keys WHERE key = ?", (key,)).fetchone()
            return int(counted[0])

    assert rows() == 1
    onceward.json("claims", "purge")
    assert rows() == 0
    assert onceward.json("claims", "purge") == {"deleted_count": 0}


def test_a_ledger_in_memory_is_known_to_its_hub_alone(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Onceward(["--ledger", "memory:"], tmp_path, capsysbinary, monkeypatch)

    done = here("claims", "list")

    assert (done.code, "ask it with --hub" in done.err) == (2, True)


def test_a_ledger_of_an_application_needs_no_hub_and_nothing_is_made(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = Onceward(["--ledger", "sqlite:///payments.db"], tmp_path, capsysbinary, monkeypatch)

    absent = here("claims", "list")
    assert (absent.code, "there is no ledger 'payments.db'" in absent.err) == (1, True)
    assert list(tmp_path.iterdir()) == []

    with open_ledger("sqlite:///payments.db") as ledger:
        doubt(ledger, "charge:1")
    (found,) = here.json("claims", "list")["claims"]
    assert found["key"] == "charge:1"
    assert not (tmp_path / "onceward-data").exists()
