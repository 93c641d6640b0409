"""Preparation of the data folder, the database and the ledger, for the server and for commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from onceward.errors import InvalidConfig
from onceward.http.stored.codec import ResponseCodec
from onceward.http.stored.encryption import Encryption
from onceward.http.stored.policy import DENY_HEADERS
from onceward.hub.archives import ArchiveLimits
from onceward.hub.config.config import Config
from onceward.hub.db.engine import Database, open_database
from onceward.hub.db.migrate import migrate
from onceward.hub.tasks import UploadRules
from onceward.ledger.doubts import OnDoubt
from onceward.ledger.ledger import Ledger
from onceward.ledger.open import open_ledger

# Readable and writable by the owner only.
_PRIVATE = 0o600
# `onceward restore` writes here first, and removes this subfolder last.
RESTORING = ".restoring"


@contextlib.contextmanager
def opened(config: Config, *, pool_size: int = 1) -> Iterator[Database]:
    """Open the database of a configuration. The folder, the database and its tables are created or migrated first."""
    make_folder(config)
    database = open_database(config.database_url, pool_size=pool_size)
    try:
        migrate(database)
        yield database
    finally:
        database.close()


def has_data(config: Config) -> bool:
    """Return whether there is a database: a file in the data folder, or a URL. Opening would create a missing file."""
    return bool(config.hub.database) or (config.data_folder / "hub.db").exists()


def ledger(config: Config, on_doubt: OnDoubt | None = None) -> Ledger:
    """Open the ledger of a configuration. It connects on first use."""
    return open_ledger(
        config.ledger_url,
        lease_seconds=config.idempotency.processing_ttl_seconds,
        retain_seconds=config.retain_seconds,
        namespace=config.idempotency.key_prefix,
        on_doubt=on_doubt,
        log_keys="whole" if config.hub.log_keys == "whole" else "short",
    )


def response_codec(config: Config) -> ResponseCodec:
    """Return the codec with which the hub's middleware stores responses."""
    keys = config.idempotency.encryption_keys
    return ResponseCodec(frozenset(name.encode() for name in DENY_HEADERS), Encryption(keys) if keys else None)


def make_folder(config: Config) -> None:
    """Create the data folder, and make its database files private, because they contain the data of all users."""
    folder = config.data_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = "a file has this name" if isinstance(error, FileExistsError) else error.strerror
        raise InvalidConfig(
            f"hub.data_dir: cannot create the folder {str(folder)!r}: {why}; choose another with --data-dir"
        ) from None
    if (folder / RESTORING).exists():
        raise InvalidConfig(
            f"hub.data_dir: a restore into {str(folder)!r} is running or was interrupted. Wait for it, or empty the"
            " folder and run `onceward restore` again"
        )
    for name, url in (("hub.db", config.database_url), ("ledger.db", config.ledger_url)):
        if url == config.file_url(name):
            # SQLite creates the WAL and its index with the mode of the database file.
            _make_private(folder / name, create=True)
            for end in ("-wal", "-shm"):
                _make_private(folder / f"{name}{end}", create=False)


def is_readable_by_others(folder: Path) -> bool:
    """Return whether other users of this machine may list or enter the folder."""
    return bool(folder.stat().st_mode & 0o077)


def _make_private(file: Path, *, create: bool) -> None:
    """Give a file mode 0600, whatever the umask. A file of another owner keeps its mode."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    # If the file cannot be opened, the store that needs it reports why.
    with contextlib.suppress(OSError):
        descriptor = os.open(file, flags, _PRIVATE)
        try:
            found = os.fstat(descriptor)
            if found.st_mode & 0o077 and found.st_uid == os.geteuid():
                os.fchmod(descriptor, _PRIVATE)
        finally:
            os.close(descriptor)


def upload_rules(config: Config) -> UploadRules:
    """Return the rules for uploads, over HTTP and from the command line."""
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
