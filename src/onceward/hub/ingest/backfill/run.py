"""Backfill run: reads, normalizes and inserts an archive in chunks, from where the last run stopped.

While one chunk is being inserted, the next one is read and normalized. The checkpoint follows the commits and is never
ahead of them. A message that cannot become an entry is reported and counted, and does not stop the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from onceward.errors import InvalidInput, OncewardError
from onceward.hub.ingest.backfill.checkpoint import Checkpoints
from onceward.hub.ingest.backfill.item import Item, MessageSource, Position
from onceward.hub.ingest.entries.result import Inserted
from onceward.hub.ingest.payload import Payload

CHUNK = 500
CHUNK_MAX = 1000
# A chunk also ends at this size, because it is inserted in one transaction, and with --hub in one request.
CHUNK_BYTES = 4 * 1024 * 1024

ACTIONS = ("inserted", "updated", "unchanged", "stale", "skipped", "ignored", "failed")
# Called for each message that failed.
Report: TypeAlias = "Callable[[Trouble], object]"


class Result(NamedTuple):
    """Result for one payload: one of `ACTIONS`, and the reason if it failed."""

    action: str
    why: str | None = None


class Sink(Protocol):
    """Destination of the entries."""

    def insert(self, payloads: Sequence[Payload]) -> list[Result]: ...


class Trouble(NamedTuple):
    """A message that did not become an entry."""

    source: str
    where: str
    reason: str


@dataclass(slots=True)
class Summary:
    """Counts of a run: messages by action, and failures by reason.

    `finished` is False if the run did not reach the end. `plain` counts inserted entries without a policy and keys, for
    which duplicates cannot be recognised.
    """

    actions: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    plain: int = 0
    finished: bool = True

    @property
    def count(self) -> int:
        return sum(self.actions.values())


@dataclass(slots=True)
class _Chunk:
    """Messages that are inserted together."""

    items: list[Item] = field(default_factory=list)
    payloads: list[Payload] = field(default_factory=list)
    ignored: int = 0
    troubles: list[tuple[Item, str]] = field(default_factory=list)
    size: int = 0
    position: Position = 0
    done: int = 0

    def add(self, item: Item) -> None:
        self.position, self.done = item.position, item.done
        self.size += item.size
        try:
            payload = item.payload()
        except InvalidInput as error:
            self.troubles.append((item, str(error)))
            return
        if payload is None:
            self.ignored += 1
        else:
            self.items.append(item)
            self.payloads.append(payload)

    @property
    def count(self) -> int:
        return len(self.items) + len(self.troubles) + self.ignored


class Backfill:
    """One run over one archive. `stopping` is called between chunks; `progress` gets the bytes and messages so far."""

    def __init__(
        self,
        source: MessageSource,
        sink: Sink,
        checkpoints: Checkpoints | None,
        *,
        chunk: int = CHUNK,
        report: Report,
        progress: Callable[[int, int], object] = lambda _done, _count: None,
        stopping: Callable[[Summary], bool] = lambda _summary: False,
    ) -> None:
        self._source = source
        self._sink = sink
        self._checkpoints = checkpoints
        self._chunk = chunk
        self._report = report
        self._progress = progress
        self._stopping = stopping
        self.summary = Summary()

    def run(self, after: Position | None = None) -> Summary:
        """Run from this position to the end, or until `stopping` returns True. Database errors are raised."""
        with ThreadPoolExecutor(1, "onceward-backfill") as inserting:
            under_way: tuple[_Chunk, Future[list[Result]]] | None = None
            for chunk in self._chunks(after):
                if under_way is not None:
                    self._finish(*under_way)
                    under_way = None
                    if self._stopping(self.summary):
                        self.summary.finished = False
                        return self.summary
                under_way = chunk, inserting.submit(self._insert, chunk.payloads)
            if under_way is not None:
                self._finish(*under_way)
        if self._checkpoints is not None and self.summary.finished:
            self._checkpoints.forget(self._source)
        return self.summary

    def _chunks(self, after: Position | None) -> Iterator[_Chunk]:
        chunk = _Chunk(position=0 if after is None else after)
        try:
            for item in self._source.items(after):
                chunk.add(item)
                if chunk.count >= self._chunk or chunk.size >= CHUNK_BYTES:
                    yield chunk
                    chunk = _Chunk(position=chunk.position, done=chunk.done)
        except InvalidInput as error:
            # The archive cannot be read any further. The messages before are inserted; the next run resumes here.
            chunk.troubles.append((Item("the archive", chunk.position, chunk.done, 0, lambda: None), str(error)))
            self.summary.finished = False
        if chunk.count:
            yield chunk

    def _insert(self, payloads: Sequence[Payload]) -> list[Result]:
        return self._sink.insert(payloads) if payloads else []

    def _finish(self, chunk: _Chunk, inserted: Future[list[Result]]) -> None:
        summary = self.summary
        for item, payload, result in zip(chunk.items, chunk.payloads, inserted.result(), strict=True):
            summary.actions[result.action] += 1
            summary.plain += result.action == "inserted" and payload.get("idempotency_policy_key") is None
            if result.why is not None:
                self._fail(item, result.why)
        for item, why in chunk.troubles:
            summary.actions["failed"] += 1
            self._fail(item, why)
        if chunk.ignored:
            summary.actions["ignored"] += chunk.ignored
        if self._checkpoints is not None:
            self._checkpoints.save(self._source, chunk.position)
        self._progress(chunk.done, summary.count)

    def _fail(self, item: Item, why: str) -> None:
        self.summary.reasons[why] += 1
        self._report(Trouble(self._source.name, item.where, why))


def result_of(inserted: Inserted) -> Result:
    """Return the action of an insert, with updates that changed nothing as `stale` or `unchanged`."""
    if inserted.error is not None:
        return Result("failed", _reason(inserted.error))
    if inserted.action == "updated" and not inserted.changed:
        return Result("stale" if inserted.stale else "unchanged")
    return Result(inserted.action)


def _reason(error: OncewardError) -> str:
    return str(error)
