"""Commands for tasks and attachments, against a running hub and directly on a data folder."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Onceward

from onceward.cli.commands.attach import KINDS
from onceward.hub import tasks
from onceward.hub.db.engine import open_database
from onceward.hub.tasks import validation

PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


@pytest.fixture
def task(onceward: Onceward) -> str:
    return onceward.text("task", "add", "Paint the shed")


def attached(onceward: Onceward, task: str) -> list[str]:
    return [one["id"] for one in onceward.json("attach", "list", task)["attachments"]]


def blobs(onceward: Onceward) -> set[Path]:
    return {path for path in onceward.blobs.glob("sha256/??/??/*") if path.is_file()}


def test_all_tasks_are_listed_over_any_number_of_pages(onceward: Onceward) -> None:
    onceward.text("task", "add", "First")
    database_file = onceward.blobs.parent / "hub.db"
    with closing(open_database(f"sqlite:///{database_file}")) as database, database.write() as tx:
        made = [tasks.create_task(tx, "One of many").id for _ in range(1001)]
    listed = [one["id"] for one in onceward.json("task", "list")["tasks"]]

    assert listed[:1001] == made[::-1]
    assert len(listed) == len(set(listed)) > 1001
    assert len(onceward.text("task", "list").splitlines()) == len(listed) + 1
    for limit in (1, 500, 501):
        found = onceward.json("task", "list", "--limit", str(limit))["tasks"]
        assert [one["id"] for one in found] == listed[:limit]


def test_a_task_is_added_listed_shown_and_removed(onceward: Onceward) -> None:
    made = onceward.json("task", "add", "Paint it", "--spec-id", "docs/paint.md")
    named = onceward.text("task", "add", "Named", "--id", f"{made['id']}.named")
    listed = onceward.json("task", "list", "--limit", "2")["tasks"]
    taken = onceward("task", "add", "Again", "--id", named)
    removed = onceward.text("task", "rm", named)
    gone = onceward("task", "show", named)

    assert (made["title"], made["spec_id"]) == ("Paint it", "docs/paint.md")
    assert set(made) == {"id", "title", "spec_id", "created_at", "updated_at"}
    assert onceward.json("task", "show", made["id"]) == made
    assert f"spec_id     {made['spec_id']}" in onceward.text("task", "show", made["id"]).splitlines()
    assert [one["id"] for one in listed] == [named, made["id"]]
    assert (taken.code, taken.err) == (1, f"onceward: task {named!r} already exists\n")
    assert removed == f"removed: {named}"
    assert (gone.code, gone.out, gone.err) == (1, b"", f"onceward: task {named!r} does not exist\n")


@pytest.mark.parametrize("content", [b"", b"\x00\r\n\xff" * 5, os.urandom(3_000_000)], ids=["empty", "binary", "large"])
def test_a_file_is_added_listed_fetched_and_removed(
    content: bytes, onceward: Onceward, task: str, tmp_path: Path
) -> None:
    file = tmp_path / "Plan «1».bin"
    file.write_bytes(content)
    made = onceward.text("attach", "add", task, file, "--kind", "artifact")
    (row,) = onceward.json("attach", "list", task)["attachments"]
    got = onceward.json("attach", "get", made, "--output", tmp_path / "got")
    printed = onceward("attach", "get", made, "--output", "-")
    removed = onceward.json("attach", "rm", made)

    assert (row["id"], row["filename"], row["size_bytes"], row["labels"]) == (made, file.name, len(content), [])
    assert (tmp_path / "got").read_bytes() == content
    assert got == {"id": made, "output": str(tmp_path / "got"), "size_bytes": len(content), "sha256": row["sha256"]}
    assert (printed.code, printed.out, printed.err) == (0, content, "")
    assert removed == {"id": made}
    assert attached(onceward, task) == []
    assert onceward("attach", "get", made, "--output", "-").code == 1


def test_a_link_is_added_to_a_url_or_to_a_path(onceward: Onceward, task: str) -> None:
    url, path = "https://example.com/a.pdf", "docs/a.svg"
    page = onceward.text("attach", "add-link", task, "--kind", "SPEC", "--url", url)
    file = onceward.json("attach", "add-link", task, "--kind", "diagram", "--repo-path", path, "--title", "A")
    shown = onceward.json("attach", "show", page)
    content = onceward("attach", "get", page, "--output", "-")

    assert (shown["kind"], shown["source_type"], shown["external_url"]) == ("spec", "external_url", url)
    assert (shown["media_type"], shown["media_type_source"]) == ("application/pdf", "inferred")
    assert (file["source_type"], file["repo_path"], file["title"]) == ("repo_path", path, "A")
    assert attached(onceward, task) == [file["id"], page]
    assert (content.code, content.out) == (2, b"")
    assert "is a link" in content.err


def test_the_fields_of_an_attachment_are_shown_as_given(onceward: Onceward, task: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text('{"a": 1}')
    made = onceward.json(
        "attach", "add", task, file, "--kind", "artifact", "--title", "Ä", "--media-type", "application/json",
        "--label", "B", "--label", "a", "--label", "b", "--meta", '{"ü": [1]}', "--expires-at", "2999-01-01",
        "--filename", "b.json",
    )  # fmt: skip
    relabelled = onceward.json("attach", "label", made["id"], "New", "x")

    assert (made["media_type"], made["media_type_source"]) == ("application/json", "declared")
    assert (made["labels"], made["meta"]["ü"]) == (["a", "b"], [1])
    assert (made["title"], made["filename"]) == ("Ä", "b.json")
    assert made["expires_at"] == "2999-01-01T23:59:59.999999Z"
    assert relabelled["labels"] == ["new", "x"]
    assert onceward.json("attach", "show", made["id"]) == relabelled
    assert onceward.text("attach", "label", made["id"]) == "labels: "


def test_standard_input_is_attached_without_a_name(onceward: Onceward, task: str) -> None:
    made = onceward.text("attach", "add", task, "-", "--kind", "other", stdin=b"piped\x00")
    named = onceward.text("attach", "add", task, "-", "--kind", "other", "--filename", "p.bin", stdin=b"piped\x00")

    assert "filename" not in onceward.json("attach", "show", made)
    assert onceward.json("attach", "show", named)["filename"] == "p.bin"
    assert onceward("attach", "get", made, "--output", "-").out == b"piped\x00"


def test_the_same_command_with_the_same_key_runs_once(onceward: Onceward, task: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)

    def keyed(*arguments: str, key: str) -> tuple[int, str]:
        done = onceward(*arguments, "--idempotency-key", f"{task}-{key}")
        return done.code, done.out.decode().strip() or done.err

    other = (1, "onceward: Idempotency key already used with different request\n")
    add, link = ("attach", "add", task), ("attach", "add-link", task, "--kind", "spec", "--url")
    code, made = keyed("task", "add", " Once ", "--spec-id", "s", key="1")

    assert code == 0
    assert keyed("task", "add", " Once ", "--spec-id", "s", key="1") == (0, made)
    assert keyed("task", "add", "Twice", "--spec-id", "s", key="1") == other
    assert keyed(*add, "a", "--kind", "spec", key="2") == keyed(*add, "a", "--kind", "spec", key="2")
    assert keyed(*add, "b", "--kind", "spec", key="2") == other
    assert keyed(*add, "a", "--kind", "other", key="2") == other
    assert keyed(*link, "https://a.example", key="3") == keyed(*link, "https://a.example", key="3")
    assert keyed(*link, "https://b.example", key="3") == other
    assert len(attached(onceward, task)) == 2
    assert onceward("task", "add", "x", "--idempotency-key", "two words").code == 2


def test_garbage_is_counted_and_collected(onceward: Onceward, task: str, tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(os.urandom(1000))
    made = onceward.text("attach", "add", task, file, "--kind", "other")
    kept = onceward.text("attach", "add", task, "-", "--kind", "other", stdin=os.urandom(10))
    onceward.text("attach", "rm", made)
    before = blobs(onceward)
    young = onceward.json("admin", "gc-blobs", "--dry-run")
    counted = onceward.json("admin", "gc-blobs", "--dry-run", "--grace", "0")
    untouched = blobs(onceward)
    applied = onceward.json("admin", "gc-blobs", "--apply", "--grace", "0s", "--batch-size", "1")
    again = onceward.text("admin", "gc-blobs", "--apply", "--grace", "0").splitlines()

    assert young["candidate_count"] == 0
    assert counted["candidate_count"] == applied["deleted_count"] > 0
    assert counted["reclaimed_bytes"] == applied["reclaimed_bytes"] >= 1000
    assert (counted["dry_run"], applied["dry_run"], applied["failed_count"]) == (True, False, 0)
    assert untouched == before
    assert len(before) - len(blobs(onceward)) == applied["deleted_count"]
    assert "candidate_count  0" in again
    assert onceward("attach", "get", kept, "--output", "-").code == 0


def test_damage_is_found_quarantined_and_repaired(onceward: Onceward, task: str, tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(os.urandom(1000))
    made = onceward.json("attach", "add", task, file, "--kind", "other")
    well = onceward.text("admin", "fsck")
    blob = next(path for path in blobs(onceward) if path.name == made["sha256"])
    blob.chmod(0o600)
    blob.write_bytes(bytes(1000))
    broken = onceward("attach", "get", made["id"], "--output", tmp_path / "got")
    (seen,) = onceward.json("admin", "fsck", "--no-quarantine", code=1)["damaged"]
    aside = onceward("admin", "fsck")
    onceward.text("attach", "add", task, file, "--kind", "other")

    assert well == "all blobs are intact"
    assert broken.code == 1
    assert broken.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.bin"]
    assert (seen["problem"], seen["attachments"], seen["quarantined"]) == ("wrong-content", [made["id"]], False)
    assert aside.code == 1
    assert made["id"] in aside.out.decode()
    assert onceward.text("admin", "fsck") == well
    assert onceward("attach", "get", made["id"], "--output", "-").out == file.read_bytes()


def test_every_spec_becomes_one_attachment(onceward: Onceward) -> None:
    task = onceward.text("task", "add", "x", "--spec-id", "docs/a.md")
    wrong = onceward.text("task", "add", "y", "--spec-id", "/etc/passwd")
    first = onceward("admin", "backfill-spec-attachments")
    again = onceward.json("admin", "backfill-spec-attachments", code=1)
    (spec,) = onceward.json("attach", "list", task)["attachments"]
    onceward.text("task", "rm", wrong)

    assert first.code == 1
    assert wrong in first.out.decode()
    assert (spec["kind"], spec["repo_path"]) == ("spec", "docs/a.md")
    assert again["added_count"] == 0
    assert [one for one, _ in again["failed"]] == [wrong]
    assert onceward.json("admin", "backfill-spec-attachments")["failed"] == []


def test_an_existing_file_is_not_overwritten(onceward: Onceward, task: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"mine")
    made = onceward.text("attach", "add", task, "-", "--kind", "other", stdin=b"theirs")
    refused = onceward("attach", "get", made, "--output", there)
    before = there.read_bytes()
    onceward.text("attach", "get", made, "--output", there, "--force")
    folder = onceward("attach", "get", made, "--output", tmp_path, "--force")

    assert (refused.code, refused.err) == (
        1,
        f"onceward: {str(there)!r} already exists; use --force to overwrite it\n",
    )
    assert before == b"mine"
    assert there.read_bytes() == b"theirs"
    assert (folder.code, folder.err) == (1, f"onceward: {str(tmp_path)!r} is a folder; give the path of a file\n")
    assert tmp_path.is_dir()


def test_a_missing_folder_is_named(onceward: Onceward, task: str, tmp_path: Path) -> None:
    made = onceward.text("attach", "add", task, "-", "--kind", "other", stdin=b"theirs")
    (tmp_path / "file").touch()
    done = onceward("attach", "get", made, "--output", tmp_path / "nope" / "x")
    in_file = onceward("attach", "get", made, "--output", tmp_path / "file" / "x")

    assert (done.code, done.err) == (1, f"onceward: {tmp_path / 'nope'}: the folder does not exist\n")
    assert (in_file.code, in_file.err) == (1, f"onceward: {tmp_path / 'file' / 'x'}: Not a directory\n")


def test_a_refused_attachment_leaves_nothing(onceward: Onceward, task: str, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(PNG + os.urandom(8))
    before = blobs(onceward)
    kind = onceward("attach", "add", task, file, "--kind", "other", "--media-type", "application/pdf")
    label = onceward("attach", "add", task, file, "--kind", "other", "--label", "two words")
    nobody = onceward("attach", "add", "no-task", file, "--kind", "other")

    assert (kind.code, label.code, nobody.code) == (2, 2, 1)
    assert "application/pdf" in kind.err
    assert "labels" in label.err
    assert nobody.err == "onceward: task 'no-task' does not exist\n"
    assert attached(onceward, task) == []
    assert blobs(onceward) == before
    found = onceward.json(
        "attach", "add", task, file, "--kind", "other", "--media-type", "application/pdf", "--allow-mismatch"
    )
    assert found["media_type"] == "image/png"


@pytest.mark.parametrize(
    "arguments",
    [("task", "show"), ("task", "rm"), ("attach", "list"), ("attach", "show"), ("attach", "rm"), ("attach", "label")],
    ids=" ".join,
)
def test_a_missing_task_or_attachment_is_reported_in_one_line(
    arguments: tuple[str, ...], onceward: Onceward, task: str, tmp_path: Path
) -> None:
    done = onceward(*arguments, f"{task}-none")

    assert (done.code, done.out) == (1, b"")
    noun = "attachment" if arguments in {("attach", "show"), ("attach", "rm"), ("attach", "label")} else "task"
    assert done.err == f"onceward: {noun} {f'{task}-none'!r} does not exist\n"
    assert onceward("attach", "get", "at-none", "--output", "none").code == 1
    assert not (tmp_path / "none").exists()


def test_control_characters_in_stored_text_do_not_reach_the_terminal(onceward: Onceward) -> None:
    made = onceward.text("task", "add", "one\x1b[2J\ntwo\u202e")

    assert "one\N{REPLACEMENT CHARACTER}[2J two\N{REPLACEMENT CHARACTER}" in onceward.text("task", "list")
    assert onceward.json("task", "show", made)["title"] == "one\x1b[2J\ntwo\u202e"


def test_the_kinds_are_those_of_the_hub() -> None:
    assert KINDS == validation.KINDS


@pytest.mark.parametrize("arguments", [("task", "show"), ("attach", "show"), ("task", "rm")])
@pytest.mark.usefixtures("task")
def test_an_id_that_is_not_text_is_reported_in_one_line(onceward: Onceward, arguments: tuple[str, ...]) -> None:
    done = onceward(*arguments, "\udcff")

    assert (done.code != 0, done.out, done.err.count("\n")) == (True, b"", 1)


def test_meta_that_is_nested_too_deeply_is_reported_in_one_line(onceward: Onceward, task: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("note")

    for levels in (70, 100_000):
        meta = '{"a":' * levels + "1" + "}" * levels
        done = onceward("attach", "add", task, tmp_path / "note.txt", "--kind", "other", "--meta", meta)

        assert (done.code, done.out, done.err.count("\n")) == (2, b"", 1)
        assert "nested" in done.err
    assert attached(onceward, task) == []
