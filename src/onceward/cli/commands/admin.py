"""`onceward admin`: maintenance of stored files and tasks."""

from __future__ import annotations

import click

from onceward.cli.backend import Backend, exactly_one, on_backend
from onceward.cli.output import as_json, print_fields, print_json, print_table, progress, size_text
from onceward.hub.config.setting import Duration

_GRACE = Duration(0, 365 * 86_400.0, named=False)
# Exit code if something is damaged or could not be done, as for any other failure.
_NOT_WELL = 1


@click.group()
def admin() -> None:
    """Delete unused files, check stored files for damage, show who stores how much, and migrate old tasks.

    With --hub, the commands ask a running hub, which requires a token with scope admin. Without it, they work directly
    on a data folder, whether or not a hub is running on it.

    \b
    Examples:
      onceward admin gc-blobs --dry-run
      onceward admin fsck
      onceward admin usage
    """  # noqa: D301  # \b: click does not rewrap the paragraph


def _read_grace(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else _GRACE.read(value, as_text=True)
    except ValueError:
        raise click.BadParameter(f"expected {_GRACE.expected}, not {value!r}") from None


@admin.command("gc-blobs")
@click.option("--dry-run", is_flag=True, help="Count what would be deleted, and delete nothing.")
@click.option("--apply", is_flag=True, help="Delete what --dry-run counts.")
@click.option(
    "--grace",
    "grace_seconds",
    metavar="DURATION",
    callback=_read_grace,
    help="Keep a blob this long after its last upload: 0, 30m, 24h. [default: attachments.gc_grace]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Blobs per batch. [default: attachments.gc_batch_size]",
)
@as_json
@exactly_one("dry_run", "apply")
@on_backend
def gc_blobs(
    backend: Backend,
    dry_run: bool,
    apply: bool,  # noqa: ARG001  # checked by `exactly_one`
    grace_seconds: float | None,
    batch_size: int | None,
    as_json: bool,
) -> int:
    """Delete expired attachments and stored bytes that nothing needs.

    It deletes expired attachments, blobs without attachments, bytes without a row, and temporary files of uploads whose
    process died. Give exactly one of --dry-run and --apply. Uploads may run at the same time, and so may other runs
    of this command.

    Exit code 1: something could not be deleted; the next run tries again.

    \b
    Examples:
      onceward admin gc-blobs --dry-run
      onceward admin gc-blobs --apply --grace 0
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    with progress("garbage collection", in_bytes=False, hidden=as_json) as update:
        done = backend.gc_blobs(dry_run=dry_run, grace_seconds=grace_seconds, batch_size=batch_size, progress=update)
    if as_json:
        print_json(done)
    else:
        print_fields({**done, "reclaimed_bytes": f"{done['reclaimed_bytes']} ({size_text(done['reclaimed_bytes'])})"})
    return _NOT_WELL if done["failed_count"] else 0


@admin.command()
@click.option(
    "--quarantine/--no-quarantine",
    default=True,
    help="Move damaged blobs to quarantine: they are no longer served, and uploading the same file again restores it."
    " Correct wrong counters. [default: yes]",
)
@as_json
@on_backend
def fsck(backend: Backend, quarantine: bool, as_json: bool) -> int:
    """Check that the bytes of every blob exist and match their SHA-256, and the counters of stored bytes.

    Exit code 1: some are missing or damaged, or a counter was wrong.

    \b
    Examples:
      onceward admin fsck
      onceward admin fsck --no-quarantine --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    with progress("checking", in_bytes=True, hidden=as_json) as update:
        found = backend.fsck(quarantine=quarantine, progress=update)
    damaged, counters = found["damaged"], found["wrong_counters"]
    if as_json:
        print_json(found)
        return _NOT_WELL if damaged or counters else 0
    if damaged:
        rows = [
            (one["blob_id"], one["problem"], one["quarantined"], one["attachments"], one["sha256"]) for one in damaged
        ]
        print_table(("BLOB", "PROBLEM", "QUARANTINED", "ATTACHMENTS", "SHA256"), rows)
    else:
        click.echo("all blobs are intact")
    if counters:
        columns = ("principal", "counted_bytes", "stored_bytes", "corrected")
        print_table([name.upper() for name in columns], [[one[name] for name in columns] for one in counters])
    return _NOT_WELL if damaged or counters else 0


@admin.command()
@as_json
@on_backend
def usage(backend: Backend, as_json: bool) -> None:
    """List how many bytes each principal stores, and how much of its quota that is.

    An attachment counts for the principal that uploaded it, until it is deleted or expires. The quota is the setting
    attachments.max_bytes_per_principal.

    \b
    Examples:
      onceward admin usage
      onceward admin usage --hub https://hub.example.com --token-file token --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    found = backend.usage()
    if as_json:
        print_json(found)
        return
    most = found["max_bytes_per_principal"]
    rows = [
        (
            one["principal"],
            one["attachment_count"],
            one["stored_bytes"],
            size_text(one["stored_bytes"]),
            f"{one['stored_bytes'] / most:.0%}" if most else "no quota",
        )
        for one in sorted(found["usage"], key=lambda one: -one["stored_bytes"])
    ]
    print_table(("PRINCIPAL", "ATTACHMENTS", "BYTES", "SIZE", "QUOTA"), rows)


@admin.command("backfill-spec-attachments")
@as_json
@on_backend
def backfill_spec_attachments(backend: Backend, as_json: bool) -> int:
    """Create an attachment of kind spec from each task's spec_id. A second run adds nothing.

    Exit code 1: some spec_ids are neither a URL nor a path in a repository. They are listed.

    \b
    Examples:
      onceward admin backfill-spec-attachments
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    with progress("checking tasks", in_bytes=False, hidden=as_json) as update:
        done = backend.backfill_spec_attachments(update)
    failed = done["failed"]
    if as_json:
        print_json(done)
    else:
        print_fields({**done, "failed": len(failed)})
        if failed:
            print_table(("TASK", "REASON"), failed)
    return _NOT_WELL if failed else 0
