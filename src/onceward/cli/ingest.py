"""`onceward ingest`: archives of messages made into entries, and how one message would be."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceward.cli.output import as_json, plain, say_fields, say_json, say_table
from onceward.cli.settings import DATA, settings
from onceward.cli.target import somewhere
from onceward.hub.config import Config

if TYPE_CHECKING:
    from onceward.cli.backfilling import Place, Told

_SCHEMAS = click.Choice(["pkm", "pkm_test"])
_FORMATS = click.Choice(["mbox", "maildir", "eml", "telegram", "jsonl"])
_FORMS = click.Choice(["payload", "telegram", "email"])
_TYPES = click.Choice(["thought", "note", "link", "newsletter", "correspondence_thread"])
_THREADS = click.Choice(["email_correspondence_thread_v1", "email_correspondence_thread_v2"])
_CHUNK_MAX = 1000


@click.group()
def ingest() -> None:
    """Make entries of archives of messages, again and again if need be: each message is there once.

    Mail as mbox, Maildir or .eml, exports of Telegram Desktop, and JSON Lines.
    """


@contextmanager
def _here(config: Config) -> Iterator[Place]:
    from onceward.cli.stored_ingest import stored_ingest  # noqa: PLC0415  # a database is a lot to import for `--help`

    with stored_ingest(config) as found:
        yield found


@contextmanager
def _there(url: str, token: str | None) -> Iterator[Place]:
    from onceward.cli.running_ingest import running_ingest  # noqa: PLC0415  # only who speaks HTTP needs a client

    with running_ingest(url, token) as found:
        yield found


def on_entries(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say where; the command gets a `Place` instead of them."""
    return somewhere(command, DATA, _here, _there)


@ingest.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=_FORMATS, help="What the paths are. [default: found by looking]")
@click.option("--as", "form", type=_FORMS, help="What the lines of JSON Lines are. [default: found by looking]")
@click.option("--content-type", type=_TYPES, help="For every message, instead of what it looks like.")
@click.option("--thread-policy", type=_THREADS, default=_THREADS.choices[0], show_default=True, help="Keys of threads.")
@click.option("--schema", type=_SCHEMAS, help="Where entries go. [default: the active one, see `ingest test-mode`]")
@click.option("--dry-run", is_flag=True, help="Look what would be done, and write nothing.")
@click.option("--restart", is_flag=True, help="Begin at the beginning, not where the last run stopped.")
@click.option(
    "--chunk", type=click.IntRange(1, _CHUNK_MAX), default=500, show_default=True, help="Messages to a transaction."
)
@click.option("--errors", "errors_file", type=click.Path(path_type=Path), help="Where to tell of messages that fail.")
@click.option("--max-errors", type=click.IntRange(0), metavar="N", help="Stop after so many. [default: never]")
@click.option("--state", "state_folder", type=click.Path(path_type=Path), help="Where checkpoints are kept.")
@as_json
@on_entries
def backfill(place: Place, paths: tuple[Path, ...], as_json: bool, **said: Any) -> int:
    """Make an entry of each message of these archives; `-` reads JSON Lines from standard input.

    It may be stopped and started again: it goes on where it stopped, and what is there already is found. Messages that
    cannot become entries are counted, told in the file of --errors, and keep nobody else. Code 1: there were some.

    \b
    onceward ingest backfill mail.mbox Maildir/ --dry-run
    onceward ingest backfill result.json --schema pkm_test --errors errors.jsonl
    onceward ingest backfill messages.jsonl --hub http://127.0.0.1:8787
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.cli.backfilling import run_all  # noqa: PLC0415  # normalizers are a lot to import for `--help`

    with ExitStack() as stack:
        told = run_all(place, paths, stack, piped=sys.stdin.buffer, **said)
    _say_told(told, as_json)
    return told.code


def _say_told(told: Told, as_json: bool) -> None:
    if as_json:
        say_json(told.shown())
        return
    say_fields(told.shown_counts())
    if told.plain:
        click.echo(f"{told.plain} of those inserted have no policy and no keys: another run inserts them again")
    if told.reasons:
        say_table(("COUNT", "REASON"), [(count, reason) for reason, count in told.reasons])
    if told.note:
        click.echo(told.note, err=True)


@ingest.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=_FORMATS, help="What the file is. [default: found by looking]")
@click.option("--as", "form", type=_FORMS, help="What the JSON is. [default: found by looking]")
@click.option("--content-type", type=_TYPES, help="Instead of what the message looks like.")
@click.option("--thread-policy", type=_THREADS, default=_THREADS.choices[0], show_default=True, help="Keys of threads.")
@click.option("--schema", type=_SCHEMAS, help="Where to look. [default: the active one]")
@as_json
@settings(*DATA)
def explain(config: Config, path: Path, as_json: bool, **said: Any) -> None:
    """Show how one message is read, told apart and keyed, and what an insert would do with it now.

    The first message of an archive; `-` reads JSON from standard input. Nothing is written.

    \b
    onceward ingest explain letter.eml
    onceward ingest explain update.json --json
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    from onceward.cli.explaining import explained  # noqa: PLC0415  # a database is a lot to import for `--help`

    told = explained(config, path, piped=sys.stdin.buffer, **said)
    if as_json:
        say_json(told)
        return
    for title, fields in told.items():
        click.echo(f"{title}:")
        for name, value in fields.items() if isinstance(fields, dict) else ():
            for number, one in enumerate(value if isinstance(value, list) else [value]):
                text = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
                click.echo(f"  {name if number == 0 else '':<26} {_cut(text)}")


_SHOWN_LENGTH_MAX = 200


def _cut(text: str) -> str:
    return plain(text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}… ({len(text)} characters)")


@ingest.command()
@click.option("--schema", type=_SCHEMAS, help="Whose. [default: the active one]")
@as_json
@on_entries
def policies(place: Place, schema: str | None, as_json: bool) -> None:
    """List the policies: what the keys of entries mean, and what happens to one that is there already.

    \b
    onceward ingest policies
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    found = place.policies(schema)
    if as_json:
        say_json({"policies": found})
    else:
        names = ("policy_key", "source", "content_type", "conflict_action", "secondary_role", "enabled")
        say_table([name.upper() for name in names], [[one[name] for name in names] for one in found])


@ingest.command("test-mode")
@click.argument("mode", metavar="[MODE]", type=click.Choice(["on", "off"]), required=False)
@as_json
@on_entries
def test_mode(place: Place, mode: str | None, as_json: bool) -> None:
    """Say whether entries go to the schema for tests, or change it.

    \b
    onceward ingest test-mode
    onceward ingest test-mode on
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    if mode is not None:
        place.set_test_mode(mode == "on")
    enabled = place.test_mode()
    if as_json:
        say_json({"enabled": enabled})
    else:
        click.echo("on: entries go to pkm_test" if enabled else "off: entries go to pkm")
