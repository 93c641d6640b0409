"""`ingest backfill`: run the archives one by one, show progress, write errors, and handle signals."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import click

from onceward.cli.backend import JsonObject
from onceward.hub.ingest.backfill.checkpoint import Checkpoints
from onceward.hub.ingest.backfill.detect import open_source
from onceward.hub.ingest.backfill.item import MessageSource
from onceward.hub.ingest.backfill.normalizer import Normalizer
from onceward.hub.ingest.backfill.run import ACTIONS, Backfill, Sink, Summary, Trouble

_FAILED = 1
_SIGNALLED = 128
# Interval of progress lines without a terminal.
_LINE_SECONDS = 5.0
# The number of reasons shown. If there are more, they usually differ only in the values that they quote.
_REASONS_MAX = 20


class IngestBackend(Protocol):
    """Entries of a hub: over HTTP, or directly in its database."""

    @property
    def state_folder(self) -> Path: ...

    # Identifies the backend, so that each has its own checkpoints.
    @property
    def purpose(self) -> str: ...

    def schema(self, name: str | None) -> str:
        """Return the name of this schema, or of the active one; raise if it is not available."""
        ...

    def sink(self, schema: str, *, dry_run: bool) -> Sink: ...

    def policies(self, schema: str | None) -> list[JsonObject]: ...

    def test_mode(self) -> bool: ...

    def set_test_mode(self, enabled: bool) -> None: ...


@dataclass(slots=True)
class BackfillReport:
    """Result of all archives.

    `plain` counts messages inserted without keys, which another run would insert again. `signalled` is the number of
    the signal that stopped the run early.
    """

    schema: str
    dry_run: bool
    actions: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    plain: int = 0
    seconds: float = 0.0
    signalled: int = 0
    note: str = ""

    def add(self, summary: Summary) -> None:
        self.actions += summary.actions
        self.kinds += summary.reasons
        self.plain += summary.plain

    @property
    def code(self) -> int:
        if self.signalled:
            return _SIGNALLED + self.signalled
        return _FAILED if self.actions["failed"] or self.note else 0

    @property
    def reasons(self) -> list[tuple[str, int]]:
        return self.kinds.most_common(_REASONS_MAX)

    def shown_counts(self) -> JsonObject:
        count = sum(self.actions.values())
        rate = round(count / self.seconds) if self.seconds else 0
        return {
            "schema": f"{self.schema} (dry run: nothing was written)" if self.dry_run else self.schema,
            "messages": f"{count} in {self.seconds:.1f} s, {rate} per second",
            **{action: self.actions[action] for action in ACTIONS},
        }

    def json(self) -> JsonObject:
        return {
            "schema": self.schema,
            "dry_run": self.dry_run,
            "finished": not self.note,
            "seconds": round(self.seconds, 3),
            **{action: self.actions[action] for action in ACTIONS},
            "without_keys": self.plain,
            "reasons": dict(self.reasons),
        }


def run_all(
    backend: IngestBackend,
    paths: Sequence[Path],
    stack: ExitStack,
    *,
    piped: BinaryIO,
    kind: str | None,
    form: str | None,
    content_type: str | None,
    thread_policy: str,
    schema: str | None,
    dry_run: bool,
    restart: bool,
    chunk: int,
    errors_file: Path | None,
    max_errors: int | None,
    state_folder: Path | None,
) -> BackfillReport:
    """Run every archive, one after the other. All are opened before the first one starts."""
    normalizer = Normalizer(content_type, form, thread_policy)
    sources = [open_source(path, normalizer, kind, piped) for path in paths]
    report = BackfillReport(backend.schema(schema), dry_run)
    sink = backend.sink(report.schema, dry_run=dry_run)
    checkpoints = Checkpoints(state_folder or backend.state_folder, f"{backend.purpose} {report.schema}")
    write_trouble = _error_writer(stack, errors_file)
    signals = stack.enter_context(_collecting_signals())
    began = time.monotonic()

    def stopping(summary: Summary) -> bool:
        failed = report.actions["failed"] + summary.actions["failed"]
        return bool(signals) or (max_errors is not None and failed > max_errors)

    for source in sources:
        after = None if restart or dry_run else checkpoints.load(source)
        if after is not None:
            click.echo(f"{source.name}: continuing where the last run stopped", err=True)
        with _showing_progress(source, report) as progress:
            summary = Backfill(
                source,
                sink,
                None if dry_run else checkpoints,
                chunk=chunk,
                report=write_trouble,
                progress=progress,
                stopping=stopping,
            ).run(after)
        report.add(summary)
        report.seconds = time.monotonic() - began
        if not summary.finished:
            report.signalled = signals[0] if signals else 0
            report.note = _note(source, report, max_errors)
            break
    return report


def _note(source: MessageSource, report: BackfillReport, max_errors: int | None) -> str:
    again = "run the same command to continue"
    if report.signalled:
        return f"{source.name}: stopped; {again}"
    if max_errors is not None and report.actions["failed"] > max_errors:
        return f"{source.name}: stopped after {report.actions['failed']} failed messages; {again}"
    return f"{source.name}: could not be read to its end"


def _error_writer(stack: ExitStack, errors_file: Path | None) -> Callable[[Trouble], object]:
    if errors_file is None:
        return lambda _trouble: None
    file = stack.enter_context(errors_file.open("a", encoding="utf-8"))

    def write_trouble(trouble: Trouble) -> None:
        file.write(json.dumps(trouble._asdict(), ensure_ascii=True) + "\n")
        # Flush each line, so that it can be watched and survives a kill of this process.
        file.flush()

    return write_trouble


@contextlib.contextmanager
def _collecting_signals() -> Iterator[list[int]]:
    """Collect signals: the first one stops the run after its current chunk, a second one immediately."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def on_signal(number: int, _frame: object) -> None:
        if signals:
            raise SystemExit(_SIGNALLED + number)
        signals.append(number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _showing_progress(source: MessageSource, report: BackfillReport) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, otherwise a line every few seconds, on standard error."""
    before = sum(report.actions.values())
    if sys.stderr.isatty():
        with _bar(source, before) as moving:
            yield moving
        return
    began = printed_at = time.monotonic()

    def progress(done: int, count: int) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at >= _LINE_SECONDS:
            printed_at = now
            share = f"{100 * done / source.total:.0f} %, " if source.total else ""
            click.echo(f"{source.name}: {share}{count} messages, {count / (now - began):.0f} per second", err=True)

    yield progress


@contextlib.contextmanager
def _bar(source: MessageSource, before: int) -> Iterator[Callable[[int, int], None]]:
    from rich import progress as bars  # noqa: PLC0415  # only needed on a terminal
    from rich.console import Console  # noqa: PLC0415

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TextColumn("{task.fields[count]} messages, {task.fields[rate]:.0f}/s"),
        bars.TimeRemainingColumn(),
    )
    began = time.monotonic()
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(Path(source.name).name, total=source.total, count=before, rate=0.0)

        def progress(done: int, count: int) -> None:
            shown.update(task, completed=done, count=before + count, rate=count / (time.monotonic() - began))

        yield progress
