"""`onceward task`: the tasks of a hub."""

from __future__ import annotations

import functools

import click

from onceward.cli.backend import Backend, on_backend, with_key, with_limit
from onceward.cli.output import as_json, print_fields, print_json, print_table


@click.group()
def task() -> None:
    """Create, list, show and remove tasks.

    With --hub, the commands work on a running hub. Without it, they work directly on a data folder, whether or not a
    hub is running on it.

    \b
    Examples:
      onceward task add "Paint the shed" --id shed
      onceward task list
      onceward task rm shed
    """  # noqa: D301  # \b: click does not rewrap the paragraph


@task.command()
@click.argument("title")
@click.option("--id", "task_id", metavar="ID", help="Id of the task. [default: a generated id]")
@click.option("--spec-id", metavar="SPEC", help="Specification: a URL, or a path in the repository.")
@with_key
@as_json
@functools.partial(on_backend, may_be_new=True)
def add(backend: Backend, title: str, task_id: str | None, spec_id: str | None, key: str | None, as_json: bool) -> None:
    """Create a task and print its id.

    \b
    Examples:
      onceward task add "Paint the shed" --id shed --spec-id docs/shed.md
      TASK=$(onceward task add "Paint the shed" --hub http://127.0.0.1:8787)
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    made = backend.create_task(title, task_id, spec_id, key)
    if as_json:
        print_json(made)
    else:
        click.echo(made["id"])


@task.command("list")
@with_limit
@as_json
@on_backend
def list_tasks(backend: Backend, limit: int | None, as_json: bool) -> None:
    """List tasks, newest first.

    \b
    Examples:
      onceward task list
      onceward task list --limit 20 --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    found = backend.tasks(limit)
    if as_json:
        print_json({"tasks": found})
        return
    rows = [(one["id"], one["title"], one.get("spec_id"), one["created_at"]) for one in found]
    print_table(("ID", "TITLE", "SPEC", "CREATED"), rows)


@task.command()
@click.argument("task_id", metavar="TASK")
@as_json
@on_backend
def show(backend: Backend, task_id: str, as_json: bool) -> None:
    """Show a task. `onceward attach list` shows its attachments.

    \b
    Examples:
      onceward task show shed
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    found = backend.task(task_id)
    if as_json:
        print_json(found)
    else:
        print_fields(found)


@task.command()
@click.argument("task_id", metavar="TASK")
@as_json
@on_backend
def rm(backend: Backend, task_id: str, as_json: bool) -> None:
    """Remove a task and its attachments.

    `onceward admin gc-blobs` later deletes the stored bytes that nothing else needs.

    \b
    Examples:
      onceward task rm shed
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    backend.delete_task(task_id)
    if as_json:
        print_json({"id": task_id})
    else:
        click.echo(f"removed: {task_id}")
