"""`onceward backup` and `onceward restore`: copy the data of a hub on SQLite, and put a copy back."""

from __future__ import annotations

from pathlib import Path

import click

from onceward.cli.backend import JsonObject, exit_on_sigterm
from onceward.cli.output import as_json, print_fields, print_json, progress, size_text
from onceward.cli.settings import WITH_BYTES, settings
from onceward.hub.config.config import Config

# Exit code if some blobs were damaged already, and are not in the backup.
_NOT_WELL = 1


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@as_json
@settings(*WITH_BYTES, "ledger")
def backup(config: Config, folder: Path, as_json: bool) -> int:
    """Copy the data of a hub on SQLite into a new or empty folder. The hub may be running.

    The copy has every row that was committed before the command started, the ledger, and every blob that a row names.
    Each blob is checked against its SHA-256. The settings file and encryption keys are not copied; keep them elsewhere.

    Exit code 1: it failed, or the bytes of some blobs were missing or damaged already; `onceward admin fsck` shows them.

    \b
    Examples:
      onceward backup /backups/2031-05-01
      onceward backup /backups/2031-05-01 --data-dir /var/lib/onceward --json
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.backup.backup import back_up  # noqa: PLC0415  # slow import; `--help` does without

    with exit_on_sigterm(), progress("backing up", in_bytes=True, hidden=as_json) as update:
        manifest = back_up(config, folder, update)
    _print(manifest.json(), as_json, folder)
    if manifest.damaged:
        click.echo(
            f"{len(manifest.damaged)} blobs are not in the backup, because their bytes are missing or damaged; run"
            " onceward admin fsck",
            err=True,
        )
    return _NOT_WELL if manifest.damaged else 0


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@as_json
@settings("data_dir")
def restore(config: Config, folder: Path, as_json: bool) -> None:
    """Copy a backup into an empty data folder, and check every byte of it. Then start the hub as usual.

    Clients that follow events start over: the restored log is a different one (log_epoch) from that of the hub that was
    backed up, because that hub may have continued. Do not run both hubs at once.

    \b
    Examples:
      onceward restore /backups/2031-05-01 --data-dir /var/lib/onceward
      onceward serve --data-dir /var/lib/onceward
    """  # noqa: D301  # \b: click does not rewrap the paragraph
    from onceward.hub.backup.restore import restore as restore_backup  # noqa: PLC0415  # as above

    with exit_on_sigterm(), progress("restoring", in_bytes=True, hidden=as_json) as update:
        manifest = restore_backup(folder, config, update)
    _print(manifest.json(), as_json, config.data_folder)


def _print(manifest: JsonObject, as_json: bool, folder: Path) -> None:
    if as_json:
        print_json({"folder": str(folder), **manifest})
        return
    database, ledger, blobs = manifest["database"], manifest["ledger"], manifest["blobs"]
    print_fields(
        {
            "folder": str(folder),
            "created_at": manifest["created_at"],
            "database": f"{sum(database['tables'].values())} rows, {size_text(database['size_bytes'])}",
            "ledger": f"{ledger['tables'].get('platform_idempotency_keys', 0)} claims, {size_text(ledger['size_bytes'])}",
            "blobs": f"{blobs['count']}, {size_text(blobs['size_bytes'])}",
        }
    )
