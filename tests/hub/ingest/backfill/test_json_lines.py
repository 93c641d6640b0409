"""JSON Lines: each line in any of its forms, and the kind of archive at a path."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.hub.ingest.backfill.message_archives import exported, file, items, mail, mbox, message, refs

from onceward.errors import InvalidInput
from onceward.hub.ingest.backfill import lines
from onceward.hub.ingest.backfill.detect import format_of, open_source
from onceward.hub.ingest.backfill.json_lines import JsonLines
from onceward.hub.ingest.backfill.normalizer import Normalizer, form_of

PAYLOAD: dict[str, Any] = {"source": "web", "content_type": "page", "capture_text": "x", "external_ref": "p"}
TELEGRAM: dict[str, Any] = {"text": "A thought", "source": {"chat_id": 1, "message_id": 2}}
UPDATE: dict[str, Any] = {
    "update_id": 1,
    "message": {"message_id": 3, "chat": {"id": 1, "type": "private"}, "date": 1, "text": "x"},
}
EMAIL: dict[str, Any] = {
    "raw_text": "x",
    "from": "a@example.com",
    "subject": "Re: x",
    "source": {"message_id": "<4@x>"},
}
RAW: dict[str, Any] = {"raw_message": mail(5)}


def jsonl(*values: Any) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def test_each_line_is_recognised_by_its_fields(tmp_path: Path) -> None:
    content = jsonl(PAYLOAD, TELEGRAM, UPDATE, EMAIL, RAW)
    source = JsonLines(file(tmp_path, "a.jsonl", content), Normalizer())
    found = items(source)

    assert refs(found) == ["p", "tg:1:2", "tg:1:3", "<4@x>", "<5@example.com>"]
    for number, item in enumerate(found, 1):
        assert refs(items(source, item.position)) == refs(found[number:])
    assert [form_of(one) for one in (PAYLOAD, TELEGRAM, UPDATE, EMAIL, RAW)] == [
        "payload", "telegram", "telegram", "email", "email",
    ]  # fmt: skip


def test_broken_lines_fail_alone_and_empty_ones_are_skipped(tmp_path: Path) -> None:
    content = '{"source": \n\n  \r\n[1]\n"x"\n{"a": NaN}\n\xff\n'.encode("latin-1") + jsonl(TELEGRAM).encode().rstrip()
    found = items(JsonLines(file(tmp_path, "a.jsonl", content), Normalizer()))

    references = refs(found)

    assert references[-1] == "tg:1:2"
    assert all(str(one).startswith("refused: line ") for one in references[:-1])
    assert len(references) == 6
    assert content[int(found[-1].where.removeprefix("offset ")) :].startswith(b'{"text"')


def test_an_endless_line_fails_once_and_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lines", "json_lines"):
        monkeypatch.setattr(f"onceward.hub.ingest.backfill.{module}.MESSAGE_BYTES_MAX", 100)
    source = JsonLines(file(tmp_path, "a.jsonl", '"' + "x" * 1000 + '"\n' + jsonl(TELEGRAM)), Normalizer())

    refused, there = refs(items(source))

    assert "more than 100 bytes" in refused
    assert there == "tg:1:2"
    assert lines.MESSAGE_BYTES_MAX == 100


def test_a_form_and_a_type_may_be_set_for_all_lines(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", jsonl({"source": "telegram", "text": "https://example.com/"}, TELEGRAM))

    refused, there = refs(items(JsonLines(path, Normalizer(form="telegram"))))
    noted = items(JsonLines(path, Normalizer(content_type="note")))[1].payload()

    assert refused.startswith("refused:")
    assert there == "tg:1:2"
    assert noted is not None
    assert noted["content_type"] == "note"


def test_a_pipe_is_read_once() -> None:
    piped = io.BytesIO(jsonl(TELEGRAM, EMAIL).encode())
    source = open_source(Path("-"), Normalizer(), None, piped)

    assert (source.name, source.total) == ("-", None)
    assert refs(items(source)) == ["tg:1:2", "<4@x>"]
    with pytest.raises(InvalidInput, match="can only be read as jsonl"):
        open_source(Path("-"), Normalizer(), "mbox", piped)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("inbox", mbox(mail(1)), "mbox"),
        ("letter", mail(1), "eml"),
        ("letter.eml", "no header at all", "eml"),
        ("result.json", exported(message(1)), "telegram"),
        ("chat.json", exported(message(1), indent=None), "telegram"),
        ("update.json", jsonl(UPDATE), "jsonl"),
        ("messages.jsonl", jsonl(TELEGRAM), "jsonl"),
        ("messages.ndjson", "", "jsonl"),
        ("messages", "\ufeff" + jsonl(TELEGRAM), "jsonl"),
        ("photo.png", b"\x89PNG\r\n\x1a\n", None),
        ("empty", "", None),
        ("empty.mbox", "", "mbox"),
        ("mbox", "\n", "mbox"),
        ("photo.mbox", b"\x89PNG\r\n\x1a\n", None),
    ],
)
def test_a_file_is_recognised_by_its_first_bytes(
    tmp_path: Path, name: str, content: str | bytes, kind: str | None
) -> None:
    path = file(tmp_path, name, content)

    assert format_of(path) == kind
    if not content and kind is not None:
        assert items(open_source(path, Normalizer())) == []
    if kind is None:
        with pytest.raises(InvalidInput, match="has an unknown format; choose one of"):
            open_source(path, Normalizer())


def test_a_folder_is_recognised_by_its_files(tmp_path: Path) -> None:
    file(tmp_path, "mails/deep/a.eml", mail(1))
    file(tmp_path, "box/cur/1.a.b", mail(1))
    (tmp_path / "box/new").mkdir()
    file(tmp_path, "export/result.json", exported())
    (tmp_path / "empty").mkdir()

    assert format_of(tmp_path / "mails") == "eml"
    assert format_of(tmp_path / "box") == "maildir"
    assert format_of(tmp_path / "empty") is None
    with pytest.raises(InvalidInput, match="give the path of its file"):
        format_of(tmp_path / "export")
    with pytest.raises(InvalidInput, match="does not exist"):
        open_source(tmp_path / "nowhere", Normalizer())
