"""`onceward ingest`: archives into entries, on a running hub and on a data folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Onceward
from tests.hub.hub_process import environment
from tests.hub.ingest.backfill.message_archives import exported, file, mail, mbox, message
from tests.waiting import until

ACTIONS = ("inserted", "updated", "unchanged", "stale", "skipped", "ignored", "failed")


@pytest.fixture
def chat() -> int:
    # The hub is shared by all of these tests.
    return uuid.uuid4().int % 2**40


def counts(report: dict[str, Any]) -> dict[str, int]:
    return {action: report[action] for action in ACTIONS if report[action]}


def test_an_archive_is_inserted_once_however_often_the_command_runs(
    onceward: Onceward, tmp_path: Path, chat: int
) -> None:
    archive = file(
        tmp_path, "result.json", exported(*(message(n) for n in range(5)), message(9, type="service"), id=chat)
    )

    first, second = (onceward.json("ingest", "backfill", archive) for _ in range(2))

    assert counts(first) == {"inserted": 5, "ignored": 1}
    assert counts(second) == {"unchanged": 5, "ignored": 1}
    assert (first["schema"], first["finished"], first["dry_run"]) == ("pkm", True, False)


def test_the_text_output_has_a_line_for_each_action_and_the_reasons(
    onceward: Onceward, tmp_path: Path, chat: int
) -> None:
    archive = file(tmp_path, "result.json", exported(message(1), message(2, text=7), id=chat))

    done = onceward("ingest", "backfill", archive)

    printed = done.out.decode()
    assert done.code == 1
    assert "inserted   1\n" in printed
    assert "failed     1\n" in printed
    assert "COUNT  REASON\n1      " in printed


def test_failed_messages_are_listed_with_their_position(onceward: Onceward, tmp_path: Path, chat: int) -> None:
    good = {"text": "x", "source": {"chat_id": chat, "message_id": 1}}
    lines = [json.dumps(good), '{"text": 7, "source": {}}', "{", json.dumps({"source": "web", "colour": "red"})]
    archive = file(tmp_path, "a.jsonl", "\n".join(lines))
    errors = tmp_path / "errors.jsonl"

    shown = onceward.json("ingest", "backfill", archive, "--errors", errors, code=1)

    assert counts(shown) == {"inserted": 1, "failed": 3}
    content = archive.read_bytes()
    found = {}
    for line in errors.read_text().splitlines():
        trouble = json.loads(line)
        assert trouble["source"] == str(archive)
        found[content[int(trouble["where"].removeprefix("offset ")) :].split(b"\n")[0].decode()] = trouble["reason"]
    assert set(found) == set(lines[1:])
    assert "colour" in found[lines[3]]
    assert sum(shown["reasons"].values()) == 3


def test_too_many_errors_end_the_run_and_the_next_one_continues(onceward: Onceward, tmp_path: Path, chat: int) -> None:
    good = [json.dumps({"text": "x", "source": {"chat_id": chat, "message_id": number}}) for number in range(4)]
    archive = file(tmp_path, "a.jsonl", "\n".join(["{", "{", *good]))
    state = ("--chunk", "2", "--state", tmp_path / "state")

    stopped = onceward.json("ingest", "backfill", archive, "--max-errors", "1", *state, code=1)
    rest = onceward("ingest", "backfill", archive, "--json", *state)
    restarted = onceward.json("ingest", "backfill", archive, "--restart", *state, code=1)

    assert (counts(stopped), stopped["finished"]) == ({"failed": 2}, False)
    assert counts(json.loads(rest.out)) == {"inserted": 4}
    assert "continuing where the last run stopped" in rest.err
    assert counts(restarted) == {"unchanged": 4, "failed": 2}


def test_inserted_messages_without_keys_are_counted(onceward: Onceward, tmp_path: Path, chat: int) -> None:
    keyed = json.dumps({"text": "x", "source": {"chat_id": chat, "message_id": 1}})
    archive = file(tmp_path, "a.jsonl", "\n".join([keyed, *['{"source": "rss", "title": "a"}'] * 2]))

    first, second = (onceward.json("ingest", "backfill", archive) for _ in range(2))
    printed = onceward.text("ingest", "backfill", archive)
    without = onceward("ingest", "backfill", file(tmp_path, "b.jsonl", keyed)).out.decode()

    assert (counts(first), first["without_keys"]) == ({"inserted": 3}, 2)
    assert (counts(second), second["without_keys"]) == ({"inserted": 2, "unchanged": 1}, 2)
    assert "2 of the inserted messages have no policy and no keys: another run inserts them again" in printed
    assert "no keys" not in without


def test_standard_input_is_read_as_json_lines(onceward: Onceward, chat: int) -> None:
    sent = json.dumps({"text": "x", "source": {"chat_id": chat, "message_id": 1}}).encode()

    done = onceward("ingest", "backfill", "-", "--json", stdin=sent)

    assert counts(json.loads(done.out)) == {"inserted": 1}


def test_a_path_that_is_not_an_archive_is_refused_before_anything_starts(
    onceward: Onceward, tmp_path: Path, chat: int
) -> None:
    archive = file(tmp_path, "result.json", exported(message(1), id=chat))

    done = onceward("ingest", "backfill", archive, tmp_path / "nowhere")

    assert (done.code, done.err) == (2, f"onceward: {tmp_path / 'nowhere'} does not exist\n")
    assert counts(onceward.json("ingest", "backfill", archive)) == {"inserted": 1}


@pytest.fixture
def folder(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Onceward:
    monkeypatch.chdir(tmp_path)
    return Onceward(["--data-dir", "data"], tmp_path / "data/blobs", capsysbinary, monkeypatch)


def test_a_dry_run_reports_what_the_run_then_does(folder: Onceward, tmp_path: Path) -> None:
    mails = [mail(number, f"Re: topic {number % 3}") for number in range(8)]
    news = [mail(number, "News", List_Id="<n.example.com>") for number in (20, 21, 20)]
    archive = file(tmp_path, "a.mbox", mbox(*mails, *news))
    run = ("ingest", "backfill", archive, "--chunk", "2")

    dry = folder.json(*run, "--dry-run")
    real = folder.json(*run)

    assert counts(dry) == counts(real)
    assert (dry["dry_run"], real["inserted"]) == (True, 5)


def test_schemas_are_separate_and_entries_go_to_the_active_one(folder: Onceward, tmp_path: Path) -> None:
    archive = file(tmp_path, "result.json", exported(message(1)))

    named = folder.json("ingest", "backfill", archive, "--schema", "pkm_test")
    folder.text("ingest", "test-mode", "on")
    active = folder.json("ingest", "backfill", archive)
    folder.text("ingest", "test-mode", "off")
    other = folder.json("ingest", "backfill", archive)

    assert [(one["schema"], counts(one)) for one in (named, active, other)] == [
        ("pkm_test", {"inserted": 1}),
        ("pkm_test", {"unchanged": 1}),
        ("pkm", {"inserted": 1}),
    ]


def test_a_hub_inserts_entries_only_into_its_active_schema(
    hub: tuple[str, Path],
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    chat: int,
) -> None:
    there = Onceward(["--hub", hub[0]], tmp_path, capsysbinary, monkeypatch)
    archive = file(tmp_path, "result.json", exported(message(1), id=chat))

    other = there("ingest", "backfill", archive, "--schema", "pkm_test")
    dry = there("ingest", "backfill", archive, "--dry-run")

    assert (other.code, "the hub's active schema is pkm, not pkm_test" in other.err) == (2, True)
    assert (dry.code, "use --data-dir instead of --hub" in dry.err) == (2, True)


def test_policies_and_the_test_mode_are_shown(onceward: Onceward) -> None:
    table = onceward.text("ingest", "policies")
    (links,) = [
        one for one in onceward.json("ingest", "policies")["policies"] if one["policy_key"] == "telegram_link_v1"
    ]

    assert "telegram_thought_v1" in table
    assert (links["conflict_action"], links["secondary_role"], links["update_fields"]) == ("skip", "identity", None)
    assert onceward.text("ingest", "test-mode") == "off: entries go to pkm"
    assert onceward.json("ingest", "test-mode") == {"enabled": False}


@pytest.mark.parametrize(
    ("name", "content", "policy"),
    [
        ("letter.eml", mail(1), "email_correspondence_thread_v1"),
        ("mail.mbox", mbox(mail(1, "News", List_Id="<n.example.com>")), "email_newsletter_v1"),
        ("result.json", exported(message(1)), "telegram_thought_v1"),
        ("form.json", '{"text": "https://example.com/?utm_source=x", "source": {}}', "telegram_link_v1"),
        ("lines.jsonl", '{"text": "x", "source": {"chat_id": 1, "message_id": 2}}', "telegram_thought_v1"),
    ],
    ids=["eml", "mbox", "export", "form", "lines"],
)
def test_explain_shows_how_a_message_is_handled_and_writes_nothing(
    folder: Onceward, tmp_path: Path, name: str, content: str | bytes, policy: str
) -> None:
    path = file(tmp_path, name, content)
    nowhere = folder.json("ingest", "explain", path)
    assert not (tmp_path / "data").exists()
    folder.text("task", "add", "make a database")

    before = folder.json("ingest", "explain", path)
    folder.json("ingest", "backfill", path)
    after = folder.json("ingest", "explain", path)
    printed = folder.text("ingest", "explain", path)

    assert "does not contain a database" in nowhere["insert"]["because"]
    assert before["keys"] == after["keys"]
    assert before["keys"]["idempotency_policy_key"] == policy
    assert before["keys"]["how"][0].startswith("primary: ")
    assert (before["insert"]["action"], before["entry"]["reasons"]) == ("inserted", after["entry"]["reasons"])
    assert (after["insert"]["action"] in {"updated", "skipped"}, after["insert"]["changed"]) == (True, False)
    assert f"idempotency_policy_key     {policy}\n" in printed


def test_explain_says_that_an_entry_has_no_keys(folder: Onceward, tmp_path: Path) -> None:
    folder.text("task", "add", "make a database")

    shown = folder.json("ingest", "explain", file(tmp_path, "a.json", '{"source": "rss", "title": "a"}'))

    assert shown["keys"]["how"] == ["the payload has no policy and no keys"]
    assert (shown["insert"]["action"], "so every copy of it is inserted" in shown["insert"]["because"]) == (
        "inserted",
        True,
    )


def test_explain_says_why_a_message_cannot_be_an_entry(folder: Onceward, tmp_path: Path) -> None:
    refused = folder("ingest", "explain", file(tmp_path, "a.json", '{"text": "x", "source": {}}'))
    folder.text("task", "add", "make a database")
    unknown = folder.json("ingest", "explain", file(tmp_path, "b.json", '{"source": "web",\n "capture_text": 7}'))

    assert (refused.code, "chat_id" in refused.err) == (2, True)
    assert (unknown["insert"]["action"], "capture_text" in unknown["insert"]["error"]["detail"]) == ("failed", True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_a_stopped_run_finishes_its_chunk_and_says_how_to_continue(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    archive = file(tmp_path, "result.json", exported(*(message(n) for n in range(3000))))
    command = [sys.executable, "-m", "onceward", "ingest", "backfill", str(archive), "--json", "--data-dir", "data"]
    checkpoints = tmp_path / "data/backfill"
    with subprocess.Popen(
        [*command, "--chunk", "1"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        until(lambda: checkpoints.exists() and any(checkpoints.glob("*.json")), "nothing is inserted")
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    rest = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=True)

    stopped, went_on = json.loads(out), json.loads(rest.stdout)
    assert (process.returncode, stopped["finished"]) == (code, False)
    assert 0 < stopped["inserted"] < 3000
    assert went_on["inserted"] == 3000 - stopped["inserted"]
    assert counts(went_on) == {"inserted": went_on["inserted"]}
