"""The data folder and the database, made ready: what a server and a command both need before they can begin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from onceward.blobs.archive import ArchiveLimits
from onceward.db.engine import Database, open_database
from onceward.db.migrate import migrate
from onceward.errors import InvalidConfig
from onceward.hub.config import Config
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.tasks import UploadRules

# For its owner alone.
_PRIVATE = 0o600


@contextlib.contextmanager
def opened(config: Config, *, pool_size: int = 1) -> Iterator[Database]:
    """The database of a configuration with the tables of this version; what is missing is made first."""
    make_folder(config)
    database = open_database(config.database_url, pool_size=pool_size)
    try:
        migrate(database)
        yield database
    finally:
        database.close()


def has_data(config: Config) -> bool:
    """Whether a hub has been there, or its database is elsewhere; opening one would make it."""
    return bool(config.hub.database) or (config.data_folder / "hub.db").exists()


def ledger(config: Config) -> Ledger:
    """The ledger of a configuration. It connects on first use."""
    return open_ledger(
        config.ledger_url,
        lease_seconds=config.idempotency.processing_ttl_seconds,
        retain_seconds=config.retain_seconds,
        namespace=config.idempotency.key_prefix,
    )


def make_folder(config: Config) -> None:
    """Make the data folder, and make its database files private: they hold everybody's data."""
    folder = config.data_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of this name" if isinstance(error, FileExistsError) else error.strerror
        raise InvalidConfig(
            f"hub.data_dir: the folder {str(folder)!r} cannot be made: {why}; choose another with --data-dir"
        ) from None
    for name, url in (("hub.db", config.database_url), ("ledger.db", config.ledger_url)):
        if url == config.file_url(name):
            # SQLite gives the mode of its file to the log and the index beside it.
            _make_private(folder / name, create=True)
            for end in ("-wal", "-shm"):
                _make_private(folder / f"{name}{end}", create=False)


def is_readable_by_others(folder: Path) -> bool:
    """Whether other users of this machine may list or enter the folder."""
    return bool(folder.stat().st_mode & 0o077)


def _make_private(file: Path, *, create: bool) -> None:
    """Give a file mode 0600, whatever the umask and whoever made it; a file of another owner keeps its mode."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    # What is wrong with a file that cannot be opened is said by the store that needs it.
    with contextlib.suppress(OSError):
        descriptor = os.open(file, flags, _PRIVATE)
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                os.fchmod(descriptor, _PRIVATE)
        finally:
            os.close(descriptor)


def upload_rules(config: Config) -> UploadRules:
    """What may be attached, however it comes in."""
    settings, archive = config.attachments, config.attachments_archive
    limits = ArchiveLimits(
        max_entries=archive.max_entries,
        max_total_unpacked_bytes=archive.max_total_unpacked_bytes,
        max_path_length=archive.max_path_length,
    )
    return UploadRules(
        settings.allowed_media_types,
        settings.reject_media_type_mismatch,
        limits if settings.enable_archive_inspection else None,
    )
