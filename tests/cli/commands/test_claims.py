"""`onceward claims`: an operator lists claims in doubt and resolves exactly the one that was shown."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Done, Onceward
from tests.hub.hub_process import environment
from tests.waiting import until

from onceward import Ledger, errors, open_ledger
from onceward.core.claim import Claim
from onceward.core.outcome import Outcome

SCOPE = "call"


@pytest.fixture
def ledger(onceward: Onceward) -> Iterator[Ledger]:
    """The ledger that the command works on, as an application on the same store has it."""
    onceward.text("task", "add", "make a data folder")
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


def test_a_recovery_point_and_a_refused_key_are_shown(onceward: Onceward, ledger: Ledger, key: str) -> None:
    claim = ledger.blocking.begin(SCOPE, key, repeatable=False)
    assert isinstance(claim, Claim)
    ledger.blocking.mark(claim, 1, '{"batch":"b-1"}')
    assert onceward.json("claims", "show", SCOPE, key)["recovery_point"] == {"batch": "b-1"}
    assert 'recovery_point  {"batch": "b-1"}' in onceward.text("claims", "show", SCOPE, key)

    ledger.blocking.settle(claim, Outcome(body=b"1"), 0, refuse_seconds=600)

    expired = onceward.json("claims", "list", "--status", "expired")["claims"]
    assert [(one["status"], one["key"]) for one in expired if one["key"] == key] == [("expired", key)]


def test_claims_in_doubt_are_listed_with_their_notes(onceward: Onceward, ledger: Ledger, key: str) -> None:
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


def test_the_oldest_claims_come_first(onceward: Onceward, ledger: Ledger) -> None:
    keys = [f"charge:{uuid.uuid4()}" for _ in range(5)]
    for key in keys:
        doubt(ledger, key)

    listed = [one["key"] for one in onceward.json("claims", "list", "--oldest", "--limit", "500")["claims"]]

    assert [key for key in listed if key in keys] == keys


def test_a_monitor_can_use_the_exit_code(onceward: Onceward, ledger: Ledger, key: str) -> None:
    scope = f"of {key}"
    claim = ledger.blocking.begin(scope, key, None, repeatable=False)
    assert isinstance(claim, Claim)
    watch = ("claims", "list", "--scope", scope, "--fail-if-any", "in_doubt")

    assert onceward(*watch) == Done(0, b"", "")
    assert ledger.blocking.doubt(claim)
    assert onceward(*watch).code == 3


def test_a_monitor_sees_only_the_claims_that_it_fails_for(onceward: Onceward, ledger: Ledger, key: str) -> None:
    scope = f"of {key}"
    for name in ("a doubt", "a failure", "a run"):
        claim = ledger.blocking.begin(scope, name, None, repeatable=False)
        assert isinstance(claim, Claim)
        assert name == "a run" or (ledger.blocking.doubt if name == "a doubt" else ledger.blocking.fail)(claim)
    watch = ("claims", "list", "--scope", scope, "--fail-if-any", "in_doubt")

    printed = onceward(*watch)
    assert (printed.code, printed.err) == (3, "")
    assert (b"a doubt" in printed.out, b"a failure" in printed.out, b"a run" in printed.out) == (True, False, False)
    assert [one["key"] for one in onceward.json(*watch, code=3)["claims"]] == ["a doubt"]
    assert onceward(*watch, "--status", "in_doubt").code == 3
    other = onceward(*watch, "--status", "failed")
    assert (other.code, other.out, "remove --status failed" in other.err) == (2, b"", True)


def test_a_list_of_claims_stops_at_its_limit_and_says_when_there_are_more(
    onceward: Onceward, ledger: Ledger, key: str
) -> None:
    scope = f"of {key}"
    keys = [f"{number:03}" for number in range(502)]
    for name in keys:
        assert isinstance(ledger.blocking.begin(scope, name, None, repeatable=True), Claim)
    listing = ("claims", "list", "--scope", scope)

    everything = onceward.json(*listing, "--limit", "1000")
    assert sorted(one["key"] for one in everything["claims"]) == keys
    assert (everything["has_more"], everything["next_after"]) == (False, None)
    some = onceward.json(*listing, "--limit", "501", "--oldest")
    assert [one["key"] for one in some["claims"]] == keys[:-1]
    assert some["has_more"] is True
    printed = onceward(*listing)
    assert printed.out.count(b"\n") == 101
    assert printed.err == "there are more than 100 claims; raise --limit to list more\n"


def test_a_doubt_is_resolved_with_the_result_of_the_effect(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)
    with pytest.raises(errors.InDoubt):
        charge(ledger, key)

    shown = onceward.json(
        "claims", "resolve", SCOPE, key, "--version", str(version), "--committed", "--value", '{"charge": "ch_1"}',
        "--reason", "found in the journal",
    )  # fmt: skip

    assert charge(ledger, key) == {"charge": "ch_1"}
    assert (shown["status"], shown["outcome"]["value"]) == ("completed", {"charge": "ch_1"})
    assert onceward.json("claims", "show", SCOPE, key) == shown
    actor = "local" if "--hub" in onceward.where else ""
    assert shown["note"].startswith(f"committed by {actor}")
    assert shown["note"].endswith(": found in the journal")


def test_a_doubt_about_a_request_is_resolved_with_its_response(onceward: Onceward, ledger: Ledger, key: str) -> None:
    claim = ledger.blocking.begin("http:user:ada", key, None, repeatable=False)
    assert isinstance(claim, Claim)
    assert ledger.blocking.doubt(claim)
    resolve = (
        "claims", "resolve", "http:user:ada", key, "--version", str(claim.version), "--committed", "--reason", "r",
    )  # fmt: skip

    for wrong in (
        ("--value", "1"),
        ("--status", "500"),
        ("--status", "200", "--header", "Set-Cookie: a=b"),
        ("--status", "200", "--header", "Set-Cookie"),
        ("--status", "200", "--body", "@none"),
        ("--body", "x"),
        ("--header", "A: b"),
    ):
        assert onceward(*resolve, *wrong).code == 2, wrong
    shown = onceward.json(*resolve, "--status", "201", "--header", "A: b", "--header", "A: c", "--body", "paid")

    assert shown["outcome"] == {"code": 201, "bytes": 4, "value": "paid"}
    entry = ledger.blocking.read("http:user:ada", key)
    assert entry is not None
    assert json.loads(entry.outcome.headers or "") == [["A", "b"], ["A", "c"], ["content-length", "4"]]


def test_an_effect_resolved_as_not_committed_may_run_again(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)

    onceward.text("claims", "resolve", SCOPE, key, "--version", str(version), "--not-committed", "--reason", "I asked")

    fingerprint = {"amount": 10}
    assert ledger.blocking.run(key, lambda: "ran", fingerprint=fingerprint, effect="irreversible") == "ran"


def test_a_claim_with_another_version_is_left_unchanged(onceward: Onceward, ledger: Ledger, key: str) -> None:
    version = doubt(ledger, key)
    resolve = ("claims", "resolve", SCOPE, key, "--committed", "--reason", "r", "--version")

    other = onceward(*resolve, str(version + 1))
    message = f"the claim has version {version}, not {version + 1}; nothing was changed"
    assert (other.code, message in other.err) == (1, True)
    onceward.text(*resolve, str(version))
    again = onceward(*resolve, str(version))
    assert (again.code, "the claim is completed" in again.err) == (1, True)
    assert charge(ledger, key) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--committed", "--value", "{", "--reason", "r"), "not valid JSON"),
        (("--committed", "--value", "[" * 100_000, "--reason", "r"), "nested too deeply"),
        (("--committed", "--value", "NaN", "--reason", "r"), "NaN is not a JSON number"),
        (("--committed", "--value", '{"a":1,"a":2}', "--reason", "r"), "an object has the same key twice"),
        (("--committed", "--value", '"\\ud800"', "--reason", "r"), "lone surrogate"),
        (("--committed", "--reason", "r", "--version", str(2**63)), "is not in the range"),
        (("--not-committed", "--value", "1", "--reason", "r"), "requires the verdict committed"),
        (("--committed", "--reason", " "), "must not be blank"),
        (
            ("--committed", "--value", json.dumps("x" * 70_000), "--reason", "r"),
            "must be at most 65536 bytes when encoded",
        ),
        (("--committed", "--not-committed", "--reason", "r"), "exactly one of"),
        (("--committed",), "Missing option '--reason'"),
    ],
    ids=[
        "no JSON",
        "deep",
        "NaN",
        "twice",
        "surrogate",
        "version",
        "a value of nothing",
        "no reason",
        "too large",
        "both",
        "reason left out",
    ],
)
def test_an_invalid_resolution_is_refused_and_changes_nothing(
    onceward: Onceward, ledger: Ledger, key: str, arguments: tuple[str, ...], message: str
) -> None:
    version = doubt(ledger, key)

    done = onceward("claims", "resolve", SCOPE, key, "--version", str(version), *arguments)

    assert (done.code, message in done.err) == (2, True), done.err
    entry = ledger.blocking.read(SCOPE, key)
    assert entry is not None
    assert entry.status == "in_doubt"


@pytest.mark.parametrize(("repeatable", "ends"), [(True, "failed"), (False, "in_doubt")])
def test_a_claim_that_has_lapsed_is_abandoned(
    onceward: Onceward, ledger: Ledger, key: str, repeatable: bool, ends: str
) -> None:
    claim = ledger.blocking.begin(SCOPE, key, None, repeatable=repeatable, lease_seconds=0.001)
    assert isinstance(claim, Claim)
    until(lambda: ledger.blocking.wait(claim.entry, 1).entry is not None, "the lease does not lapse")
    abandon = ("claims", "abandon", SCOPE, key, "--reason", "its machine is gone", "--version")

    other = onceward(*abandon, str(claim.version + 1))
    message = f"the claim has version {claim.version}, not {claim.version + 1}; nothing was changed"
    assert (other.code, message in other.err) == (1, True)
    shown = onceward.json(*abandon, str(claim.version))
    assert (shown["status"], shown["version"]) == (ends, claim.version)
    assert shown["note"].endswith(": its machine is gone")
    again = onceward(*abandon, str(claim.version))
    assert (again.code, f"the claim is {ends}" in again.err) == (1, True)


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_claim_with_a_running_lease_is_abandoned_only_by_force_and_is_then_in_doubt(
    onceward: Onceward, ledger: Ledger, key: str, repeatable: bool
) -> None:
    claim = ledger.blocking.begin(SCOPE, key, None, repeatable=repeatable)
    assert isinstance(claim, Claim)
    # As the log shows it.
    abandon = ("claims", "abandon", SCOPE, key[:20] + "...", "--version", str(claim.version), "--reason", "r")

    refused = onceward(*abandon)
    assert (refused.code, "its holder may be alive" in refused.err) == (1, True)
    assert onceward.json("claims", "show", SCOPE, key)["status"] == "in_progress"
    assert onceward.json(*abandon, "--force")["status"] == "in_doubt"
    assert ledger.blocking.settle(claim, Outcome(body=b"1")), "a holder that lives still settles it"


def test_a_claim_whose_holder_is_proved_dead_is_abandoned_during_its_lease(
    onceward: Onceward, ledger: Ledger, key: str
) -> None:
    hold = """
import sys
from onceward import open_ledger
ledger = open_ledger(sys.argv[1], namespace=sys.argv[2])
print(ledger.blocking.begin("call", sys.argv[3], None, repeatable=False, lease_seconds=3600).version, flush=True)
sys.stdin.read()
"""
    url = f"sqlite:///{onceward.blobs.parent.absolute()}/ledger.db"
    with subprocess.Popen(
        [sys.executable, "-c", hold, url, ledger.namespace, key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as holder:
        assert holder.stdout is not None
        version = holder.stdout.readline().decode().strip()
        abandon = ("claims", "abandon", SCOPE, key, "--version", version, "--reason", "r")
        alive = onceward(*abandon)
        holder.kill()
        holder.wait()

    assert (alive.code, "its holder may be alive" in alive.err) == (1, True)
    assert onceward.json(*abandon)["status"] == "in_doubt"


def test_a_completed_claim_that_never_expires_is_forgotten_and_its_effect_runs_again(
    onceward: Onceward, ledger: Ledger, key: str
) -> None:
    claim = ledger.blocking.begin(SCOPE, key, {"amount": 10}, repeatable=False)
    assert isinstance(claim, Claim)
    assert ledger.blocking.settle(claim, Outcome(body=b"1"), retain_ever=True)
    forget = ("claims", "forget", SCOPE, key, "--reason", "the wrong card", "--version")

    other = onceward(*forget, str(claim.version + 1))
    assert (other.code, "nothing was changed" in other.err) == (1, True)
    done = onceward(*forget, str(claim.version))

    assert (done.code, "runs the effect again" in done.err) == (0, True)
    assert f"version         {claim.version}" in done.out.decode()
    assert ledger.blocking.read(SCOPE, key) is None
    assert ledger.blocking.run(key, lambda: "again", fingerprint={"amount": 10}, effect="irreversible") == "again"
    entry = ledger.blocking.read(SCOPE, key)
    assert entry is not None
    assert (entry.attempt, entry.version > claim.version) == (1, True)


@pytest.mark.parametrize(
    ("status", "advice"), [("in_progress", "may be at work"), ("in_doubt", "resolve it first"), ("failed", "anyway")]
)
def test_only_a_completed_claim_is_forgotten(
    onceward: Onceward, ledger: Ledger, key: str, status: str, advice: str
) -> None:
    claim = ledger.blocking.begin(SCOPE, key, repeatable=False)
    assert isinstance(claim, Claim)
    if status != "in_progress":
        assert ledger.blocking.doubt(claim) if status == "in_doubt" else ledger.blocking.fail(claim)

    done = onceward("claims", "forget", SCOPE, key, "--reason", "r", "--version", str(claim.version))

    assert (done.code, f"the claim is {status}; only a completed claim" in done.err, advice in done.err) == (
        1,
        True,
        True,
    )
    assert onceward.json("claims", "show", SCOPE, key)["status"] == status


def test_an_unknown_claim_cannot_be_shown_or_resolved(onceward: Onceward, ledger: Ledger) -> None:
    assert ledger.blocking.read(SCOPE, "nobody") is None
    for command in (
        ("show", SCOPE, "nobody"),
        ("resolve", SCOPE, "nobody", "--version", "1", "--committed", "--reason", "r"),
        ("abandon", SCOPE, "nobody", "--version", "1", "--reason", "r"),
        ("forget", SCOPE, "nobody", "--version", "1", "--reason", "r"),
    ):
        done = onceward("claims", *command)
        assert (done.code, "has no claim with this key" in done.err) == (1, True)


def test_claims_past_their_retention_are_purged(onceward: Onceward, ledger: Ledger, key: str) -> None:
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


def test_a_ledger_in_memory_is_read_only_through_its_hub(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Onceward(["--ledger", "memory:"], tmp_path, capsysbinary, monkeypatch)

    done = here("claims", "list")

    assert (done.code, "connect to the hub with --hub" in done.err) == (2, True)


def test_an_applications_ledger_is_read_without_a_hub_and_never_created(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ["--ledger", "sqlite:///payments.db", "--namespace"]
    here = Onceward([*where, "payments"], tmp_path, capsysbinary, monkeypatch)

    absent = here("claims", "list")
    assert (absent.code, "the ledger 'payments.db' does not exist" in absent.err) == (1, True)
    assert list(tmp_path.iterdir()) == []

    with open_ledger("sqlite:///payments.db", namespace="payments") as ledger:
        version = doubt(ledger, "charge:1")
    (found,) = here.json("claims", "list")["claims"]
    assert (found["scope"], found["key"]) == (SCOPE, "charge:1")
    here.text("claims", "resolve", SCOPE, "charge:1", "--version", str(version), "--not-committed", "--reason", "r")
    assert here.json("claims", "show", SCOPE, "charge:1")["status"] == "failed"
    assert here.json("claims", "purge") == {"deleted_count": 0}

    elsewhere = Onceward([*where, "other"], tmp_path, capsysbinary, monkeypatch)
    nothing = elsewhere("claims", "list")
    assert nothing.err == "no claims in namespace other; choose one of these with --namespace: payments\n"
    assert elsewhere("claims", "list", "--fail-if-any", "in_doubt").code == 0
    unnamed = Onceward(where[:-1], tmp_path, capsysbinary, monkeypatch)
    assert unnamed("claims", "list").code == 0
    blind = unnamed("claims", "list", "--fail-if-any", "in_doubt")
    message = "onceward: no claims in namespace idempotency; choose one of these with --namespace: payments\n"
    assert (blind.code, blind.err) == (1, message), "a monitor that looks at nothing must not be green"
    wrong = Onceward([*where, "a b"], tmp_path, capsysbinary, monkeypatch)("claims", "list")
    assert (wrong.code, wrong.err.startswith("onceward: idempotency.key_prefix (flag --namespace): ")) == (2, True)
    assert not (tmp_path / "onceward-data").exists()
