"""`onceward task`: what there is to do."""

from __future__ import annotations

import functools

import click

from onceward.cli.output import as_json, say_fields, say_json, say_table
from onceward.cli.target import Target, on_target, with_key, with_limit


@click.group()
def task() -> None:
    """Make, list and remove tasks.

    With --hub they are those of a hub that runs; without it, those in a data folder, whether or not a hub runs on it.
    """


@task.command()
@click.argument("title")
@click.option("--id", "task_id", metavar="ID", help="Its id. [default: one of its own]")
@click.option("--spec-id", metavar="SPEC", help="What specifies it: a URL, or a path in the repository.")
@with_key
@as_json
@functools.partial(on_target, may_be_new=True)
def add(target: Target, title: str, task_id: str | None, spec_id: str | None, key: str | None, as_json: bool) -> None:
    """Make a task and print its id.

    \b
    onceward task add "Paint the shed" --id shed --spec-id docs/shed.md
    TASK=$(onceward task add "Paint the shed" --hub http://127.0.0.1:8787)
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    made = target.create_task(title, task_id, spec_id, key)
    if as_json:
        say_json(made)
    else:
        click.echo(made["id"])


@task.command("list")
@with_limit
@as_json
@on_target
def list_tasks(target: Target, limit: int | None, as_json: bool) -> None:
    """List tasks, the newest first.

    \b
    onceward task list
    onceward task list --limit 20 --json
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    found = target.tasks(limit)
    if as_json:
        say_json({"tasks": found})
        return
    rows = [(one["id"], one["title"], one.get("spec_id"), one["created_at"]) for one in found]
    say_table(("ID", "TITLE", "SPEC", "CREATED"), rows)


@task.command()
@click.argument("task_id", metavar="TASK")
@as_json
@on_target
def show(target: Target, task_id: str, as_json: bool) -> None:
    """Show a task. What is attached to it: onceward attach list.

    \b
    onceward task show shed
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    found = target.task(task_id)
    if as_json:
        say_json(found)
    else:
        say_fields(found)


@task.command()
@click.argument("task_id", metavar="TASK")
@as_json
@on_target
def rm(target: Target, task_id: str, as_json: bool) -> None:
    """Remove a task and everything that is attached to it.

    Bytes that nothing needs any more are collected later: onceward admin gc-blobs.

    \b
    onceward task rm shed
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    target.delete_task(task_id)
    if as_json:
        say_json({"id": task_id})
    else:
        click.echo(f"removed: {task_id}")
