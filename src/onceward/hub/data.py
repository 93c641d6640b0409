"""The data folder and the database, made ready: what a server and a command both need before they can begin."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onceward.blobs.archive import ArchiveLimits
from onceward.core.response import DENY_HEADERS
from onceward.db.engine import Database, open_database
from onceward.db.migrate import migrate
from onceward.errors import InvalidConfig
from onceward.http.kept import Form
from onceward.http.seal import Seal
from onceward.hub.config import Config
from onceward.ledger import Ledger
from onceward.open import open_ledger
from onceward.tasks import UploadRules


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


def response_form(config: Config) -> Form:
    """The form in which the hub's middleware keeps responses."""
    keys = config.idempotency.encryption_keys
    return Form(frozenset(name.encode() for name in DENY_HEADERS), Seal(keys) if keys else None)


def make_folder(config: Config) -> None:
    """For its owner alone: it holds everybody's data."""
    folder = config.data_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = "there is a file of this name" if isinstance(error, FileExistsError) else error.strerror
        raise InvalidConfig(
            f"hub.data_dir: the folder {str(folder)!r} cannot be made: {why}; choose another with --data-dir"
        ) from None


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
