"""`onceward attach`: files and links of a task."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import click

from onceward.cli.argument import json_argument
from onceward.cli.output import as_json, progress, say_fields, say_json, say_table, size_text
from onceward.cli.target import Said, Shown, Target, exactly_one, on_target, with_key, with_limit
from onceward.errors import AlreadyThere
from onceward.hub.new_file import new_file

# As in `onceward.tasks.fields`, which is imported only when a command runs.
KINDS = ("spec", "diagram", "artifact", "diagnostic", "archive", "other")


@click.group()
def attach() -> None:
    """Attach files and links to tasks, and get them back.

    With --hub they are those of a hub that runs; without it, those in a data folder, whether or not a hub runs on it.
    """


def _read_meta(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    meta = json_argument(value or "{}", "'--meta'")
    if not isinstance(meta, dict):
        raise click.BadParameter("this is not an object of JSON")
    return meta


def _described(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what may be said of an attachment of either kind."""
    for option in reversed(
        (
            click.option(
                "--kind", type=click.Choice(KINDS, case_sensitive=False), required=True, help="What it is to the task."
            ),
            click.option("--title", metavar="TEXT", help="A title for people."),
            click.option("--media-type", metavar="TYPE", help="Such as image/png. [default: found out]"),
            click.option("--label", "labels", metavar="LABEL", multiple=True, help="A label; once for each."),
            click.option(
                "--expires-at", metavar="WHEN", help="A date, or a time with its zone; after it, it is collected."
            ),
            click.option("--meta", metavar="JSON", callback=_read_meta, help="Whatever else there is, as an object."),
        )
    ):
        command = option(command)
    return command


@attach.command()
@click.argument("task_id", metavar="TASK")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_described
@click.option("--filename", metavar="NAME", help="The name to keep. [default: that of FILE]")
@click.option(
    "--allow-mismatch", is_flag=True, help="If the bytes are not of the --media-type, keep theirs. Needs scope admin."
)
@with_key
@as_json
@on_target
def add(
    target: Target,
    task_id: str,
    file: str,
    filename: str | None,
    allow_mismatch: bool,
    key: str | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Attach the bytes of FILE, or of standard input for -, and print the id of the attachment.

    \b
    onceward attach add shed plan.pdf --kind spec --label draft
    make report | onceward attach add shed - --kind artifact --filename report.txt
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    path = None if file == "-" else Path(file)
    if filename is None and path is not None:
        filename = path.name
    # A pipe has no size before its end.
    total = None if path is None else path.stat().st_size or None
    with ExitStack() as opened, progress(filename or "standard input", in_bytes=True, total=total) as update:
        source: BinaryIO = sys.stdin.buffer if path is None else opened.enter_context(path.open("rb"))
        about = Said(filename=filename, **said)
        made = target.attach_file(task_id, source, about, key, allow_mismatch=allow_mismatch, progress=update)
    _say_made(made, as_json)


@attach.command("add-link")
@click.argument("task_id", metavar="TASK")
@_described
@click.option("--url", metavar="URL", help="Where it is: http or https.")
@click.option("--repo-path", metavar="PATH", help="Where it is in the repository, relative.")
@with_key
@as_json
@exactly_one("url", "repo_path")
@on_target
def add_link(
    target: Target, task_id: str, url: str | None, repo_path: str | None, key: str | None, as_json: bool, **said: Any
) -> None:
    """Attach a link, to a URL or to a path in the repository, and print the id of the attachment.

    \b
    onceward attach add-link shed --kind spec --url https://example.com/shed.pdf
    onceward attach add-link shed --kind diagram --repo-path docs/shed.svg
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    _say_made(target.attach_link(task_id, Said(**said), key, external_url=url, repo_path=repo_path), as_json)


@attach.command("list")
@click.argument("task_id", metavar="TASK")
@with_limit
@as_json
@on_target
def list_attachments(target: Target, task_id: str, limit: int | None, as_json: bool) -> None:
    """List what is attached to a task, the newest first.

    \b
    onceward attach list shed
    onceward attach list shed --limit 20
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    found = target.attachments(task_id, limit)
    if as_json:
        say_json({"attachments": found})
        return
    heads = ("ID", "KIND", "WHAT", "MEDIA TYPE", "SIZE", "LABELS", "EXPIRES")
    say_table(heads, [_row(one) for one in found])


@attach.command()
@click.argument("attachment_id", metavar="ID")
@as_json
@on_target
def show(target: Target, attachment_id: str, as_json: bool) -> None:
    """Show an attachment.

    \b
    onceward attach show at-1a2b3c4d
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    found = target.attachment(attachment_id)
    if as_json:
        say_json(found)
    else:
        say_fields(found)


@attach.command()
@click.argument("attachment_id", metavar="ID")
@click.option("--output", "-o", metavar="FILE", required=True, help="Where to write it; - for standard output.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@as_json
@on_target
def get(target: Target, attachment_id: str, output: str, force: bool, as_json: bool) -> None:
    """Write the bytes of an attachment to a file, which is there whole or not at all.

    \b
    onceward attach get at-1a2b3c4d --output plan.pdf
    onceward attach get at-1a2b3c4d --output - | tar tz
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    with progress(attachment_id, in_bytes=True) as update:
        if output == "-":
            target.download(attachment_id, sys.stdout.buffer, update)
            sys.stdout.buffer.flush()
            return
        try:
            with new_file(Path(output), overwrite=force) as file:
                got = target.download(attachment_id, file, update)
        except AlreadyThere as error:
            if force or Path(output).is_dir():
                raise
            raise AlreadyThere(f"{error}; --force overwrites a file") from None
    if as_json:
        say_json({"id": attachment_id, "output": output, **got})


@attach.command()
@click.argument("attachment_id", metavar="ID")
@click.argument("labels", metavar="LABEL", nargs=-1)
@as_json
@on_target
def label(target: Target, attachment_id: str, labels: tuple[str, ...], as_json: bool) -> None:
    """Replace the labels of an attachment by these; by none, if there are none.

    \b
    onceward attach label at-1a2b3c4d final checked
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    changed = target.replace_labels(attachment_id, labels)
    if as_json:
        say_json(changed)
    else:
        click.echo("labels: " + " ".join(changed["labels"]))


@attach.command()
@click.argument("attachment_id", metavar="ID")
@as_json
@on_target
def rm(target: Target, attachment_id: str, as_json: bool) -> None:
    """Remove an attachment. Its bytes are collected later, when nothing else needs them: onceward admin gc-blobs.

    \b
    onceward attach rm at-1a2b3c4d
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    target.remove_attachment(attachment_id)
    if as_json:
        say_json({"id": attachment_id})
    else:
        click.echo(f"removed: {attachment_id}")


def _say_made(made: Shown, as_json: bool) -> None:
    if as_json:
        say_json(made)
    else:
        click.echo(made["id"])


def _row(one: Shown) -> tuple[object, ...]:
    what = one.get("title") or one.get("filename") or one.get("external_url") or one.get("repo_path")
    expires = "expired" if one.get("expired") else one.get("expires_at")
    return one["id"], one["kind"], what, one.get("media_type"), size_text(one.get("size_bytes")), one["labels"], expires
