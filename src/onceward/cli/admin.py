"""`onceward admin`: the work that keeps what is stored clean and whole."""

from __future__ import annotations

import click

from onceward.cli.output import as_json, progress, say_fields, say_json, say_table, size_text
from onceward.cli.target import Target, exactly_one, on_target
from onceward.hub.setting import Duration

_GRACE = Duration(0, 365 * 86_400.0, named=False)
# The exit code when something is not as it should be, as for any other failure.
_NOT_WELL = 1


@click.group()
def admin() -> None:
    """Collect garbage, check what is stored, and bring old tasks up to date.

    With --hub it asks a hub that runs, with a token of scope admin; without it, it works straight on a data folder,
    whether or not a hub runs on it.
    """


def _read_grace(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else _GRACE.read(value, as_text=True)
    except ValueError:
        raise click.BadParameter(f"expected {_GRACE.expected}, not {value!r}") from None


@admin.command("gc-blobs")
@click.option("--dry-run", is_flag=True, help="Only count what would be collected.")
@click.option("--apply", is_flag=True, help="Collect it.")
@click.option(
    "--grace",
    "grace_seconds",
    metavar="DURATION",
    callback=_read_grace,
    help="How long after its last upload a blob stays; 0, 30m, 24h. [default: attachments.gc_grace]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Blobs at a time. [default: attachments.gc_batch_size]",
)
@as_json
@exactly_one("dry_run", "apply")
@on_target
def gc_blobs(
    target: Target,
    dry_run: bool,
    apply: bool,  # noqa: ARG001  # the other of the two
    grace_seconds: float | None,
    batch_size: int | None,
    as_json: bool,
) -> int:
    """Collect what nothing needs any more: expired attachments, blobs without any, bytes without a row, and
    temporary files of uploads whose process died.

    Give one of --dry-run and --apply. It may run beside uploads and beside itself. Code 1: something could not be
    deleted; the next run tries again.

    \b
    onceward admin gc-blobs --dry-run
    onceward admin gc-blobs --apply --grace 0
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    with progress("collecting", in_bytes=False) as update:
        done = target.gc_blobs(dry_run=dry_run, grace_seconds=grace_seconds, batch_size=batch_size, progress=update)
    if as_json:
        say_json(done)
    else:
        say_fields({**done, "reclaimed_bytes": f"{done['reclaimed_bytes']} ({size_text(done['reclaimed_bytes'])})"})
    return _NOT_WELL if done["failed_count"] else 0


@admin.command()
@click.option(
    "--quarantine/--no-quarantine",
    default=True,
    help="Put damaged bytes aside, so that nobody gets them and an upload of the same file repairs it. [default: yes]",
)
@as_json
@on_target
def fsck(target: Target, quarantine: bool, as_json: bool) -> int:
    """Look whether the bytes of every blob are there, and hash them again. Code 1: some are not what they should be.

    \b
    onceward admin fsck
    onceward admin fsck --no-quarantine --json
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    with progress("checking", in_bytes=True) as update:
        found = target.fsck(quarantine=quarantine, progress=update)
    damaged = found["damaged"]
    if as_json:
        say_json(found)
    elif damaged:
        rows = [
            (one["blob_id"], one["problem"], one["quarantined"], one["attachments"], one["sha256"]) for one in damaged
        ]
        say_table(("BLOB", "PROBLEM", "QUARANTINED", "ATTACHMENTS", "SHA256"), rows)
    else:
        click.echo("all blobs are whole")
    return _NOT_WELL if damaged else 0


@admin.command("backfill-spec-attachments")
@as_json
@on_target
def backfill_spec_attachments(target: Target, as_json: bool) -> int:
    """Make one attachment of kind spec of each task's spec_id. A second run adds nothing.

    Code 1: a spec_id is neither a URL nor a path in a repository; these are listed.

    \b
    onceward admin backfill-spec-attachments
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    with progress("looking at tasks", in_bytes=False) as update:
        done = target.backfill_spec_attachments(update)
    failed = done["failed"]
    if as_json:
        say_json(done)
    else:
        say_fields({**done, "failed": len(failed)})
        if failed:
            say_table(("TASK", "REASON"), failed)
    return _NOT_WELL if failed else 0
