"""`onceward audit`, and the audit lines of commands on the data."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Onceward

from onceward.core.claim import Claim
from onceward.ledger.open import open_ledger


def test_the_audit_log_is_read_from_a_hub_and_from_the_data(onceward: Onceward) -> None:
    onceward("task", "add", "x")
    onceward.json("admin", "gc-blobs", "--dry-run")
    result, started, *_ = onceward.json("audit")["entries"]
    page = onceward.json("audit", "--limit", "1")
    head, line, *_ = onceward.text("audit").splitlines()
    source = "api" if onceward.where[0] == "--hub" else "command"

    assert [(one["action"], one["result"], one["source"]) for one in (started, result)] == [
        ("blobs.gc", "started", source),
        ("blobs.gc", "done", source),
    ]
    assert result["details"]["dry_run"] is True
    assert [one["audit_id"] for one in page["entries"]] == [result["audit_id"]]
    assert page["has_more"]
    assert head.split() == ["AUDIT_ID", "CREATED_AT", "PRINCIPAL", "CLIENT", "ACTION", "TARGET", "RESULT"]
    assert line.split()[0] == str(result["audit_id"])


@pytest.mark.parametrize("onceward", ["folder"], indirect=True)
def test_commands_on_the_data_are_recorded(onceward: Onceward) -> None:
    assert onceward("token", "create", "ada", "--scope", "read").code == 0
    assert onceward("token", "revoke", "ada").code == 0
    assert onceward("token", "revoke", "ada").code == 1
    assert onceward("token", "open-local", "--yes").code == 0
    assert onceward("ingest", "test-mode", "on").code == 0
    for command in ("gc-blobs", "fsck", "backfill-spec-attachments"):
        assert onceward("admin", command, *(["--apply"] if command == "gc-blobs" else [])).code == 0
    with open_ledger("sqlite:///data/ledger.db", namespace="idempotency") as ledger:
        assert isinstance(ledger.blocking.begin("call", "k", {}, repeatable=False), Claim)
    claim = ("call", "k", "--version", "1", "--reason", "checked")
    assert onceward("claims", "abandon", *claim, "--force").code == 0
    assert onceward("claims", "resolve", *claim, "--committed").code == 0
    assert onceward("claims", "purge").code == 0
    found = [(one["action"], one["result"]) for one in onceward.json("audit")["entries"]][::-1]

    both = ("started", "done")
    assert found == [
        ("token.create", "done"),
        ("token.revoke", "done"),
        ("token.open_local", "done"),
        ("test_mode.put", "done"),
        *(("blobs.gc", result) for result in both),
        *(("blobs.fsck", result) for result in both),
        *(("tasks.backfill_spec_attachments", result) for result in both),
        *(("claim.abandon", result) for result in both),
        *(("claim.resolve", result) for result in both),
        *(("claim.purge", result) for result in both),
    ]


@pytest.mark.parametrize("onceward", ["folder"], indirect=True)
def test_a_ledger_of_another_application_has_no_audit_log(onceward: Onceward, tmp_path: Path) -> None:
    onceward.where = ["--ledger", f"sqlite:///{tmp_path}/own.db"]
    with open_ledger(onceward.where[1], namespace="idempotency") as ledger:
        assert isinstance(ledger.blocking.begin("call", "k", {}, repeatable=False), Claim)
    done = onceward("claims", "abandon", "call", "k", "--version", "1", "--reason", "checked", "--force")

    assert done.code == 0, done.err
    assert not (tmp_path / "onceward-data").exists()


@pytest.mark.parametrize("onceward", ["folder"], indirect=True)
def test_a_folder_without_a_hub_is_an_error(onceward: Onceward, tmp_path: Path) -> None:
    done = onceward("audit")

    assert done.code == 1
    assert "no hub data in 'data'" in done.err
    assert not (tmp_path / "data").exists()


def test_the_audit_log_is_filtered_by_principal_action_and_time(onceward: Onceward) -> None:
    onceward("task", "add", "x")
    onceward.json("admin", "gc-blobs", "--dry-run")
    onceward.json("admin", "fsck", "--no-quarantine")
    principal = onceward.json("audit", "--limit", "1")["entries"][0]["principal"]
    recent = onceward.json("audit", "--action", "blobs.fsck", "--since", "1h", "--principal", principal, "--limit", "2")

    assert [one["action"] for one in recent["entries"]] == ["blobs.fsck", "blobs.fsck"]
    assert onceward.json("audit", "--until", "1h")["entries"] == []
    assert onceward.json("audit", "--principal", "nobody")["entries"] == []
    assert onceward("audit", "--since", "soon").code == 2
