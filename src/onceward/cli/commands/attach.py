"""`onceward attach`: files and links attached to tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import click

from onceward.cli.argument import json_argument
from onceward.cli.backend import AttachmentDetails, Backend, JsonObject, exactly_one, on_backend, with_key, with_limit
from onceward.cli.output import as_json, print_fields, print_json, print_table, progress, size_text
from onceward.errors import AlreadyThere
from onceward.hub.atomic_file import new_file

# The kinds of `onceward.hub.tasks.validation`, which is imported only when a command runs.
KINDS = ("spec", "diagram", "artifact", "diagnostic", "archive", "other")


@click.group()
def attach() -> None:
    """Attach files and links to tasks, list them, and download files.

    With --hub, the commands work on a running hub. Without it, they work directly on a data folder, whether or not a
    hub is running on it.

    \b
    Examples:
      onceward attach add shed plan.pdf --kind spec
      onceward attach list shed
      onceward attach get at-1a2b3c4d --output plan.pdf
    """  # noqa: D301  # \b: click does not rewrap the paragraph


def _read_meta(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    meta = json_argument(value or "{}", "'--meta'")
    if not isinstance(meta, dict):
        raise click.BadParameter("expected a JSON object, such as '{\"pages\": 3}'")
    return meta


def _described(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that files and links share."""
    for option in reversed(
        (
            click.option(
                "--kind", type=click.Choice(KINDS, case_sensitive=False), required=True, help="Kind of attachment."
            ),
            click.option("--title", metavar="TEXT", help="Title, shown in lists."),
            click.option("--media-type", metavar="TYPE", help="Media type, such as image/png. [default: detected]"),
            click.option(
                "--label", "labels", metavar="LABEL", multiple=True, help="Label; repeat the option for several."
            ),
            click.option(
                "--expires-at", metavar="WHEN", help="Date, or time with time zone, after which gc-blobs deletes it."
            ),
            click.option("--meta", metavar="JSON", callback=_read_meta, help="Other metadata, as a JSON object."),
        )
    ):
        command = option(command)
    return command


@attach.command()
@click.argument("task_id", metavar="TASK")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@_described
@click.option("--filename", metavar="NAME", help="File name to store. [default: the name of FILE]")
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="If --media-type does not match the bytes, store the detected type. Needs scope admin.",
)
@with_key
@as_json
@on_backend
def add(
    backend: Backend,
    task_id: str,
    file: str,
    filename: str | None,
    allow_mismatch: bool,
    key: str | None,
    as_json: bool,
    **details: Any,
) -> None:
    """Attach a file (- for standard input) and print the id of the attachment.

    \b
    Examples:
      onceward attach add shed plan.pdf --kind spec --label draft
      make report | onceward attach add shed - --kind artifact --filename report.txt
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    path = None if file == "-" else Path(file)
    if filename is None and path is not None:
        filename = path.name
    # The size of a pipe is unknown until it ends.
    total = None if path is None else path.stat().st_size or None
    title = filename or "standard input"
    with ExitStack() as opened, progress(title, in_bytes=True, total=total, hidden=as_json) as update:
        source: BinaryIO = sys.stdin.buffer if path is None else opened.enter_context(path.open("rb"))
        about = AttachmentDetails(filename=filename, **details)
        made = backend.attach_file(task_id, source, about, key, allow_mismatch=allow_mismatch, progress=update)
    _print_made(made, as_json)


@attach.command("add-link")
@click.argument("task_id", metavar="TASK")
@_described
@click.option("--url", metavar="URL", help="URL of the file: http or https.")
@click.option("--repo-path", metavar="PATH", help="Relative path in the repository.")
@with_key
@as_json
@exactly_one("url", "repo_path")
@on_backend
def add_link(
    backend: Backend,
    task_id: str,
    url: str | None,
    repo_path: str | None,
    key: str | None,
    as_json: bool,
    **details: Any,
) -> None:
    """Attach a link to a URL or to a path in the repository, and print the id of the attachment.

    \b
    Examples:
      onceward attach add-link shed --kind spec --url https://example.com/shed.pdf
      onceward attach add-link shed --kind diagram --repo-path docs/shed.svg
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    _print_made(
        backend.attach_link(task_id, AttachmentDetails(**details), key, external_url=url, repo_path=repo_path), as_json
    )


@attach.command("list")
@click.argument("task_id", metavar="TASK")
@with_limit
@as_json
@on_backend
def list_attachments(backend: Backend, task_id: str, limit: int | None, as_json: bool) -> None:
    """List the attachments of a task, newest first.

    \b
    Examples:
      onceward attach list shed
      onceward attach list shed --limit 20
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    found = backend.attachments(task_id, limit)
    if as_json:
        print_json({"attachments": found})
        return
    heads = ("ID", "KIND", "WHAT", "MEDIA TYPE", "SIZE", "LABELS", "EXPIRES")
    print_table(heads, [_row(one) for one in found])


@attach.command()
@click.argument("attachment_id", metavar="ID")
@as_json
@on_backend
def show(backend: Backend, attachment_id: str, as_json: bool) -> None:
    """Show an attachment.

    \b
    Examples:
      onceward attach show at-1a2b3c4d
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    found = backend.attachment(attachment_id)
    if as_json:
        print_json(found)
    else:
        print_fields(found)


@attach.command()
@click.argument("attachment_id", metavar="ID")
@click.option("--output", "-o", metavar="FILE", required=True, help="File to write; - for standard output.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@as_json
@on_backend
def get(backend: Backend, attachment_id: str, output: str, force: bool, as_json: bool) -> None:
    """Download an attachment. The file is written completely or not at all.

    \b
    Examples:
      onceward attach get at-1a2b3c4d --output plan.pdf
      onceward attach get at-1a2b3c4d --output - | tar tz
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    with progress(attachment_id, in_bytes=True, hidden=as_json) as update:
        if output == "-":
            backend.download(attachment_id, sys.stdout.buffer, update)
            sys.stdout.buffer.flush()
            return
        try:
            with new_file(Path(output), overwrite=force) as file:
                got = backend.download(attachment_id, file, update)
        except AlreadyThere as error:
            if force or Path(output).is_dir():
                raise
            raise AlreadyThere(f"{error}; use --force to overwrite it") from None
    if as_json:
        print_json({"id": attachment_id, "output": output, **got})


@attach.command()
@click.argument("attachment_id", metavar="ID")
@click.argument("labels", metavar="[LABEL]...", nargs=-1)
@as_json
@on_backend
def label(backend: Backend, attachment_id: str, labels: tuple[str, ...], as_json: bool) -> None:
    """Replace all labels of an attachment. Without LABEL, remove them.

    \b
    Examples:
      onceward attach label at-1a2b3c4d final checked
      onceward attach label at-1a2b3c4d  # removes all labels
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    changed = backend.replace_labels(attachment_id, labels)
    if as_json:
        print_json(changed)
    else:
        click.echo("labels: " + " ".join(changed["labels"]))


@attach.command()
@click.argument("attachment_id", metavar="ID")
@as_json
@on_backend
def rm(backend: Backend, attachment_id: str, as_json: bool) -> None:
    """Remove an attachment.

    `onceward admin gc-blobs` later deletes its bytes, unless something else needs them.

    \b
    Examples:
      onceward attach rm at-1a2b3c4d
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    backend.remove_attachment(attachment_id)
    if as_json:
        print_json({"id": attachment_id})
    else:
        click.echo(f"removed: {attachment_id}")


def _print_made(made: JsonObject, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        click.echo(made["id"])


def _row(one: JsonObject) -> tuple[object, ...]:
    what = one.get("title") or one.get("filename") or one.get("external_url") or one.get("repo_path")
    expires = "expired" if one.get("expired") else one.get("expires_at")
    return one["id"], one["kind"], what, one.get("media_type"), size_text(one.get("size_bytes")), one["labels"], expires
