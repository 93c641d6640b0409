"""A backfill as a command runs it: archive by archive, with its progress, its errors and its end."""

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

from onceward.cli.target import Shown
from onceward.ingest.backfill.checkpoint import Checkpoints
from onceward.ingest.backfill.detect import open_source
from onceward.ingest.backfill.item import Source
from onceward.ingest.backfill.normalizing import Normalizing
from onceward.ingest.backfill.run import ACTIONS, Backfill, Sink, Summary, Trouble

_FAILED = 1
_SIGNALLED = 128
# How often a line is said where there is no bar.
_LINE_SECONDS = 5.0
# More reasons than these are of the same few kinds, with other values in them.
_REASONS_MAX = 20


class Place(Protocol):
    """Where entries are: a hub that runs, or its database."""

    @property
    def state_folder(self) -> Path: ...

    # Tells places apart, so that each has checkpoints of its own.
    @property
    def purpose(self) -> str: ...

    def schema(self, name: str | None) -> str:
        """The schema of this name, or the active one; an error when it cannot be had."""
        ...

    def sink(self, schema: str, *, dry_run: bool) -> Sink: ...

    def policies(self, schema: str | None) -> list[Shown]: ...

    def test_mode(self) -> bool: ...

    def set_test_mode(self, enabled: bool) -> None: ...


@dataclass(slots=True)
class Told:
    """What became of all archives. `signalled` is the signal that ended it before its time.

    `plain` were inserted without keys, and are inserted again by another run.
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

    def shown_counts(self) -> Shown:
        count = sum(self.actions.values())
        rate = round(count / self.seconds) if self.seconds else 0
        return {
            "schema": f"{self.schema} (dry run: nothing was written)" if self.dry_run else self.schema,
            "messages": f"{count} in {self.seconds:.1f} s, {rate} per second",
            **{action: self.actions[action] for action in ACTIONS},
        }

    def shown(self) -> Shown:
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
    place: Place,
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
) -> Told:
    """Every archive, one after the other. All are opened before the first one is begun."""
    normalizing = Normalizing(content_type, form, thread_policy)
    sources = [open_source(path, normalizing, kind, piped) for path in paths]
    told = Told(place.schema(schema), dry_run)
    sink = place.sink(told.schema, dry_run=dry_run)
    checkpoints = Checkpoints(state_folder or place.state_folder, f"{place.purpose} {told.schema}")
    tell = _teller(stack, errors_file)
    heard = stack.enter_context(_hearing())
    began = time.monotonic()

    def stopping(summary: Summary) -> bool:
        failed = told.actions["failed"] + summary.actions["failed"]
        return bool(heard) or (max_errors is not None and failed > max_errors)

    for source in sources:
        after = None if restart or dry_run else checkpoints.load(source)
        if after is not None:
            click.echo(f"{source.name}: going on where the last run stopped", err=True)
        with _watching(source, told) as progress:
            summary = Backfill(
                source,
                sink,
                None if dry_run else checkpoints,
                chunk=chunk,
                tell=tell,
                progress=progress,
                stopping=stopping,
            ).run(after)
        told.add(summary)
        told.seconds = time.monotonic() - began
        if not summary.finished:
            told.signalled = heard[0] if heard else 0
            told.note = _note(source, told, max_errors)
            break
    return told


def _note(source: Source, told: Told, max_errors: int | None) -> str:
    again = "the same command goes on there"
    if told.signalled:
        return f"{source.name}: stopped; {again}"
    if max_errors is not None and told.actions["failed"] > max_errors:
        return f"{source.name}: stopped after {told.actions['failed']} messages that failed; {again}"
    return f"{source.name}: it could not be read to its end"


def _teller(stack: ExitStack, errors_file: Path | None) -> Callable[[Trouble], object]:
    if errors_file is None:
        return lambda _trouble: None
    file = stack.enter_context(errors_file.open("a", encoding="utf-8"))

    def tell(trouble: Trouble) -> None:
        file.write(json.dumps(trouble._asdict(), ensure_ascii=True) + "\n")
        # Whoever watches the file sees it, and a run that is killed has told it.
        file.flush()

    return tell


@contextlib.contextmanager
def _hearing() -> Iterator[list[int]]:
    """The signals that came: the first one ends the run behind its chunk, and a second one at once."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, _frame: object) -> None:
        if heard:
            raise SystemExit(_SIGNALLED + number)
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _watching(source: Source, told: Told) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line now and then, on standard error."""
    before = sum(told.actions.values())
    if sys.stderr.isatty():
        with _bar(source, before) as moving:
            yield moving
        return
    began = said = time.monotonic()

    def progress(done: int, count: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= _LINE_SECONDS:
            said = now
            share = f"{100 * done / source.total:.0f} %, " if source.total else ""
            click.echo(f"{source.name}: {share}{count} messages, {count / (now - began):.0f} per second", err=True)

    yield progress


@contextlib.contextmanager
def _bar(source: Source, before: int) -> Iterator[Callable[[int, int], None]]:
    from rich import progress as bars  # noqa: PLC0415  # only a terminal needs it
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
