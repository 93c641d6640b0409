"""A run over an archive: in chunks, behind a checkpoint that is never ahead, and to the end whatever fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.hub.ingest.backfill.message_archives import exported, file, items, mail, mbox, message

from onceward.errors import StoreUnavailable
from onceward.hub.ingest.backfill import run
from onceward.hub.ingest.backfill.checkpoint import Checkpoints
from onceward.hub.ingest.backfill.json_lines import JsonLines
from onceward.hub.ingest.backfill.mbox import Mbox
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.run import Backfill, Result, Trouble
from onceward.hub.ingest.backfill.telegram_export import TelegramExport
from onceward.hub.ingest.payload import Payload

PURPOSE = "somewhere pkm"


class Recorder:
    """A sink that stores what it gets, and fails at the chosen chunk."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.chunks: list[list[object]] = []
        self._fails_at = fails_at

    def insert(self, payloads: Sequence[Payload]) -> list[Result]:
        if len(self.chunks) == self._fails_at:
            raise StoreUnavailable("the database does not answer")
        self.chunks.append([payload["external_ref"] for payload in payloads])
        return [Result("inserted") for _ in payloads]

    @property
    def got(self) -> list[object]:
        return [ref for chunk in self.chunks for ref in chunk]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "state", PURPOSE)


@pytest.fixture
def source(tmp_path: Path) -> Mbox:
    return Mbox(file(tmp_path, "a.mbox", mbox(*(mail(number) for number in range(10)))), Normalizer())


def ids(numbers: Sequence[int]) -> list[str]:
    return [f"<{number}@example.com>" for number in numbers]


def not_reported(_trouble: Trouble) -> None:
    raise AssertionError


def test_messages_are_inserted_in_chunks_and_the_checkpoint_is_deleted_at_the_end(
    source: Mbox, checkpoints: Checkpoints
) -> None:
    sink = Recorder()
    progress: list[tuple[int, int]] = []

    summary = Backfill(
        source, sink, checkpoints, chunk=4, report=not_reported, progress=lambda *done: progress.append(done)
    ).run()

    assert [len(chunk) for chunk in sink.chunks] == [4, 4, 2]
    assert sink.got == ids(range(10))
    assert (dict(summary.actions), summary.finished) == ({"inserted": 10}, True)
    assert [count for _, count in progress] == [4, 8, 10]
    assert progress[-1][0] == source.total
    assert checkpoints.load(source) is None
    assert list(checkpoints.folder.iterdir()) == []


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_failed_run_continues_after_the_last_commit(source: Mbox, checkpoints: Checkpoints, fails_at: int) -> None:
    first, second = Recorder(fails_at), Recorder()

    with pytest.raises(StoreUnavailable):
        Backfill(source, first, checkpoints, chunk=4, report=not_reported).run()
    after = checkpoints.load(source)
    Backfill(source, second, checkpoints, chunk=4, report=not_reported).run(after)

    assert first.got == ids(range(4 * fails_at))
    assert second.got == ids(range(4 * fails_at, 10))


def test_it_stops_between_chunks_on_request(source: Mbox, checkpoints: Checkpoints) -> None:
    sink = Recorder()

    summary = Backfill(
        source, sink, checkpoints, chunk=4, report=not_reported, stopping=lambda summary: summary.count >= 4
    ).run()

    assert (sink.got, summary.finished) == (ids(range(4)), False)
    rest = Recorder()
    Backfill(source, rest, checkpoints, chunk=4, report=not_reported).run(checkpoints.load(source))
    assert rest.got == ids(range(4, 10))


def test_a_chunk_also_ends_at_its_size_in_bytes(source: Mbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHUNK_BYTES", 1)
    sink = Recorder()

    Backfill(source, sink, None, chunk=500, report=not_reported).run()

    assert [len(chunk) for chunk in sink.chunks] == [1] * 10


def test_a_message_that_cannot_be_an_entry_is_reported_with_its_position_and_skipped(tmp_path: Path) -> None:
    path = file(tmp_path, "a.json", exported(message(1), message(2, 7), message(3, type="service"), message(4)))
    sink = Recorder()
    reported: list[Trouble] = []

    summary = Backfill(TelegramExport(path, Normalizer()), sink, None, report=reported.append).run()

    assert sink.got == ["tg:5:1", "tg:5:4"]
    assert dict(summary.actions) == {"inserted": 2, "failed": 1, "ignored": 1}
    assert [(one.source, one.where) for one in reported] == [(str(path), "message 2 (id 2)")]
    assert list(summary.reasons) == [reported[0].reason]


def test_a_message_that_the_database_refuses_is_reported_too(source: Mbox) -> None:
    class Refusing(Recorder):
        def insert(self, payloads: Sequence[Payload]) -> list[Result]:
            return [Result("failed", "no") for _ in payloads]

    reported: list[Trouble] = []

    summary = Backfill(source, Refusing(), None, report=reported.append).run()

    assert (summary.actions["failed"], summary.reasons["no"], len(reported)) == (10, 10, 10)
    assert reported[0].where == "offset 0"


def test_a_truncated_archive_keeps_the_messages_before_the_cut(tmp_path: Path, checkpoints: Checkpoints) -> None:
    whole = exported(*(message(number) for number in range(1, 8)))
    path = file(tmp_path, "a.json", whole[: whole.index('"id": 6')])
    source = TelegramExport(path, Normalizer())
    sink = Recorder()
    reported: list[Trouble] = []

    summary = Backfill(source, sink, checkpoints, chunk=3, report=reported.append).run()

    assert sink.got == [f"tg:5:{number}" for number in range(1, 6)]
    assert (summary.finished, summary.actions["failed"], reported[0].where) == (False, 1, "the archive")
    assert checkpoints.load(source) == 5
    path.write_text(whole)
    assert checkpoints.load(TelegramExport(path, Normalizer())) is None


def test_an_empty_archive_is_finished_at_once(tmp_path: Path, checkpoints: Checkpoints) -> None:
    sink = Recorder()

    summary = Backfill(
        JsonLines(file(tmp_path, "a.jsonl", ""), Normalizer()), sink, checkpoints, report=not_reported
    ).run()

    assert (summary.count, summary.finished, sink.chunks) == (0, True, [])


@pytest.fixture
def saved(source: Mbox, checkpoints: Checkpoints) -> Iterator[Path]:
    position = items(source)[3].position
    checkpoints.save(source, position)
    assert checkpoints.load(source) == position
    yield next(checkpoints.folder.iterdir())
    assert checkpoints.load(source) is None


def test_a_checkpoint_belongs_to_one_archive_at_one_path(source: Mbox, checkpoints: Checkpoints, saved: Path) -> None:
    assert Checkpoints(checkpoints.folder, "elsewhere").load(source) is None
    saved.unlink()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'"x"', b'{"mark": "x"}', b'{"mark": 1, "position": 5}', b"\xff"]
)
def test_a_garbled_checkpoint_is_ignored(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)


@pytest.mark.parametrize("position", [None, True, 1.5, [1], 10**9])
def test_an_invalid_position_is_ignored(saved: Path, position: object) -> None:
    kept = json.loads(saved.read_text())
    saved.write_text(json.dumps({**kept, "position": position}))


def test_a_replaced_archive_is_read_from_the_start(tmp_path: Path, saved: Path) -> None:
    assert saved.exists()
    file(tmp_path, "a.mbox", mbox(mail(1)).replace(b"ada@", b"eve@", 1) * 50)
