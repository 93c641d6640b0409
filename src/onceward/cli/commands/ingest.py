"""`onceward ingest`: import archives of messages as entries, and explain one message."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.cli.backend import with_backend
from onceward.cli.output import as_json, plain, print_fields, print_json, print_table
from onceward.cli.settings import DATA, settings
from onceward.hub.config.config import Config

if TYPE_CHECKING:
    from onceward.cli.backfill import BackfillReport, IngestBackend
    from onceward.hub.client.connection import HubOptions

_SCHEMAS = click.Choice(["pkm", "pkm_test"])
_FORMATS = click.Choice(["mbox", "maildir", "eml", "telegram", "jsonl"])
_FORMS = click.Choice(["payload", "telegram", "email"])
_TYPES = click.Choice(["thought", "note", "link", "newsletter", "correspondence_thread"])
_THREADS = click.Choice(["email_correspondence_thread_v1", "email_correspondence_thread_v2"])
_CHUNK_MAX = 1000


@click.group()
def ingest() -> None:
    """Import archives of messages as entries, each message once.

    An import can be repeated: it recognizes the messages that are already stored. Formats: mail as mbox, Maildir or
    .eml, exports of Telegram Desktop, and JSON Lines.

    \b
    Examples:
      onceward ingest explain letter.eml
      onceward ingest backfill mail.mbox --dry-run
      onceward ingest backfill mail.mbox
    """  # noqa: D301  # \b: click does not rewrap the paragraph


@contextmanager
def _local(config: Config) -> Iterator[IngestBackend]:
    from onceward.cli.local.ingest import local_ingest  # noqa: PLC0415  # slow import; `--help` does without

    with local_ingest(config) as found:
        yield found


@contextmanager
def _remote(url: str, token: str | None, options: HubOptions) -> Iterator[IngestBackend]:
    from onceward.cli.remote.ingest import remote_ingest  # noqa: PLC0415  # only needed with --hub

    with remote_ingest(url, token, options) as found:
        yield found


def on_entries(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select a backend to a command, which gets an `IngestBackend` instead of them."""
    return with_backend(command, DATA, _local, _remote)


@ingest.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=_FORMATS, help="Format of the archives. [default: detected]")
@click.option("--as", "form", type=_FORMS, help="How to read the lines of JSON Lines. [default: detected]")
@click.option("--content-type", type=_TYPES, help="Content type of every message. [default: detected]")
@click.option(
    "--thread-policy",
    type=_THREADS,
    default=_THREADS.choices[0],
    show_default=True,
    help="Policy for the keys of mail threads.",
)
@click.option(
    "--schema", type=_SCHEMAS, help="Schema of the entries. [default: the active one, see `ingest test-mode`]"
)
@click.option("--dry-run", is_flag=True, help="Report what would be done; write nothing.")
@click.option("--restart", is_flag=True, help="Start from the beginning, not where the last run stopped.")
@click.option(
    "--chunk",
    type=click.IntRange(1, _CHUNK_MAX),
    metavar="N",
    default=500,
    show_default=True,
    help="Messages per transaction.",
)
@click.option(
    "--errors",
    "errors_file",
    type=click.Path(path_type=Path),
    help="Append failed messages to this file, as JSON Lines.",
)
@click.option(
    "--max-errors",
    type=click.IntRange(0),
    metavar="N",
    help="Stop when more messages than this have failed. [default: never]",
)
@click.option(
    "--state",
    "state_folder",
    type=click.Path(path_type=Path),
    help="Folder for checkpoints. [default: backfill in the data folder; with --hub, in ~/.local/state/onceward]",
)
@as_json
@on_entries
def backfill(backend: IngestBackend, paths: tuple[Path, ...], as_json: bool, **options: Any) -> int:
    """Import each message of these archives as an entry.

    `-` reads JSON Lines from standard input. A run can be stopped and started again: it continues where it stopped, and
    recognizes messages that are already stored. Messages that cannot become entries are counted and written to the
    --errors file; the others are imported.

    Exit code 1: some messages failed, or an archive could not be read to its end.

    \b
    Examples:
      onceward ingest backfill mail.mbox Maildir/ --dry-run
      onceward ingest backfill result.json --schema pkm_test --errors errors.jsonl
      onceward ingest backfill messages.jsonl --hub http://127.0.0.1:8787
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.cli.backfill import run_all  # noqa: PLC0415  # slow import; `--help` does without

    with ExitStack() as stack:
        report = run_all(backend, paths, stack, piped=sys.stdin.buffer, **options)
    _print_report(report, as_json)
    return report.code


def _print_report(report: BackfillReport, as_json: bool) -> None:
    if as_json:
        print_json(report.json())
        return
    print_fields(report.shown_counts())
    if report.plain:
        click.echo(
            f"{report.plain} of the inserted messages have no policy and no keys: another run inserts them again"
        )
    if report.reasons:
        print_table(("COUNT", "REASON"), [(count, reason) for reason, count in report.reasons])
    if report.note:
        click.echo(report.note, err=True)


@ingest.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=_FORMATS, help="Format of the file. [default: detected]")
@click.option("--as", "form", type=_FORMS, help="How to read the JSON. [default: detected]")
@click.option("--content-type", type=_TYPES, help="Content type of the message. [default: detected]")
@click.option(
    "--thread-policy",
    type=_THREADS,
    default=_THREADS.choices[0],
    show_default=True,
    help="Policy for the keys of mail threads.",
)
@click.option(
    "--schema", type=_SCHEMAS, help="Schema with the stored entries to compare with. [default: the active one]"
)
@as_json
@settings(*DATA)
def explain(config: Config, path: Path, as_json: bool, **options: Any) -> None:
    """Show how one message is parsed, classified and keyed.

    It also shows what an insert would do with the message now, and writes nothing. For an archive, it explains the
    first message. `-` reads JSON from standard input.

    \b
    Examples:
      onceward ingest explain letter.eml
      onceward ingest explain update.json --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.cli.local.ingest import explain_message  # noqa: PLC0415  # slow import; `--help` does without

    explanation = explain_message(config, path, piped=sys.stdin.buffer, **options)
    if as_json:
        print_json(explanation)
        return
    for title, fields in explanation.items():
        click.echo(f"{title}:")
        for name, value in fields.items() if isinstance(fields, dict) else ():
            for number, one in enumerate(value if isinstance(value, list) else [value]):
                text = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
                click.echo(f"  {name if number == 0 else '':<26} {_cut(text)}")


_SHOWN_LENGTH_MAX = 200


def _cut(text: str) -> str:
    return plain(text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}… ({len(text)} characters)")


@ingest.command()
@click.option("--schema", type=_SCHEMAS, help="Schema of the policies. [default: the active one]")
@as_json
@on_entries
def policies(backend: IngestBackend, schema: str | None, as_json: bool) -> None:
    """List the policies of ingested entries.

    A policy defines what the keys of an entry mean, and what happens if an entry with the same key exists.

    \b
    Examples:
      onceward ingest policies
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    found = backend.policies(schema)
    if as_json:
        print_json({"policies": found})
    else:
        names = ("policy_key", "source", "content_type", "conflict_action", "secondary_role", "enabled")
        print_table([name.upper() for name in names], [[one[name] for name in names] for one in found])


@ingest.command("test-mode")
@click.argument("mode", metavar="[MODE]", type=click.Choice(["on", "off"]), required=False)
@as_json
@on_entries
def test_mode(backend: IngestBackend, mode: str | None, as_json: bool) -> None:
    """Show the test mode, or switch it on or off. In test mode, entries go to the schema pkm_test.

    MODE is on or off. Without it, the command shows the current mode.

    \b
    Examples:
      onceward ingest test-mode
      onceward ingest test-mode on
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    if mode is not None:
        backend.set_test_mode(mode == "on")
    enabled = backend.test_mode()
    if as_json:
        print_json({"enabled": enabled})
    else:
        click.echo("on: entries go to pkm_test" if enabled else "off: entries go to pkm")
