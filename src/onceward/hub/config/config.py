"""The hub's configuration from a TOML file, the environment and flags. Later sources win; all are checked at startup.

onceward.toml                 [hub]
                              port = 9000
environment                   ONCEWARD_HUB__PORT=9000
flag                          --port 9000
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from onceward.core.key import check_namespace
from onceward.errors import InvalidConfig, InvalidKey
from onceward.hub.config import setting
from onceward.hub.config.setting import (
    Choice,
    CipherKeys,
    Duration,
    Flag,
    SettingType,
    Text,
    TextList,
    WebhookSecret,
    WebhookUrl,
    WholeNumber,
)
from onceward.ledger.terms import LEASE_SECONDS_MAX, RETAIN_SECONDS_MAX

# Read from the current folder if no file is given.
DEFAULT_FILE = Path("onceward.toml")
PREFIX = "ONCEWARD_"

_HOUR = 3600.0
_DAY = 24 * _HOUR
_YEARS_100_IN_DAYS = RETAIN_SECONDS_MAX / _DAY
# A trigger of the database refuses to delete newer rows of the audit log.
AUDIT_DAYS_MIN = 30


def _is_namespace(text: str) -> bool:
    try:
        check_namespace(text)
    except InvalidKey:
        return False
    return True


_HOST = Text('a name or address without a port, such as "127.0.0.1" or "::1"', setting.is_host)
_FOLDER = Text("the path of a folder")
_FILE = Text("the path of a file", lambda _text: True)
_DATABASE = Text("sqlite:///path or postgresql://user@host/name", setting.is_database)
_LEDGER = Text("memory:, sqlite:///path, postgresql://…, redis://… or valkey://…", setting.is_ledger)
_BLOBS = Text("file:///path or s3://bucket/prefix", setting.is_blobs)
_WEBHOOK = WebhookUrl("an http:// or https:// URL", setting.is_webhook)
_BRAIN = Text("module:name", setting.is_brain)
_NAMESPACE = Text("1 to 64 characters of A-Z a-z 0-9 . _ -", _is_namespace)
_HOSTS = TextList(Text("a host name, with or without a port", lambda text: bool(text) and not set(text) & set(" /@?#")))
_MEDIA_TYPES = TextList(Text('a media type such as "image/png" or "image/*"', setting.is_media_range))
_PROXIES = TextList(Text('an address or a network such as "127.0.0.1" or "10.0.0.0/8"', setting.is_network))
_ORIGINS = TextList(Text('an origin such as "https://app.example.com"', setting.is_origin))


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Address, stores, workers, logging and request limits. Relative paths start in the current folder."""

    host: Annotated[str, _HOST] = "127.0.0.1"
    port: Annotated[int, WholeNumber(0, 65_535)] = 8787
    data_dir: Annotated[str, _FOLDER] = "./onceward-data"
    database: Annotated[str, _DATABASE] = ""
    ledger: Annotated[str, _LEDGER] = ""
    blobs: Annotated[str, _BLOBS] = ""
    workers: Annotated[int, WholeNumber(1, 256)] = 1
    grace_seconds: Annotated[float, Duration(0, _HOUR)] = 20.0
    log_format: Annotated[str, Choice(("auto", "console", "json"))] = "auto"
    log_level: Annotated[str, Choice(("debug", "info", "warning", "error", "critical"))] = "info"
    log_keys: Annotated[str, Choice(("short", "whole"))] = "short"
    on_doubt: Annotated[str, _WEBHOOK] = field(default="", repr=False)
    on_doubt_secret: Annotated[bytes, WebhookSecret()] = field(default=b"", repr=False)
    # A body is read into memory before its route runs.
    max_body_bytes: Annotated[int, WholeNumber(1024, 1024**3)] = 1024**2
    # The next four are limits per process.
    head_seconds: Annotated[float, Duration(0.1, _HOUR)] = 10.0
    # 0: the smaller of 1,000 and three quarters of the file descriptors.
    max_connections: Annotated[int, WholeNumber(0, 1_000_000)] = 0
    max_streams_per_principal: Annotated[int, WholeNumber(1, 1_000_000)] = 100
    # PostgreSQL only, and without the connection of the ledger. Three are not in the pool (`KEPT_CONNECTIONS`).
    database_connections: Annotated[int, WholeNumber(5, 1000)] = 19
    # PEM files. Empty: no TLS.
    tls_cert: Annotated[str, _FILE] = ""
    tls_key: Annotated[str, _FILE] = ""
    # Proxies whose X-Forwarded-For is believed. Their clients are never `local`.
    trusted_proxies: Annotated[tuple[str, ...], _PROXIES] = ()
    # 0: forever. The database keeps rows for at least 30 days.
    audit_keep_days: Annotated[float, Duration(0, _YEARS_100_IN_DAYS, "d")] = 365.0


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """Handling of keyed requests: leases, retention and encryption."""

    enabled: Annotated[bool, Flag()] = True
    default_ttl_hours: Annotated[float, Duration(0, RETAIN_SECONDS_MAX / _HOUR, "h")] = 24.0
    processing_ttl_seconds: Annotated[float, Duration(1, LEASE_SECONDS_MAX)] = 300.0
    # At most what a client may ask for with `Prefer: wait=N`.
    wait_seconds: Annotated[float, Duration(0, 60)] = 0.0
    auto_generate_keys: Annotated[bool, Flag()] = True
    timestamp_bucket_seconds: Annotated[float, Duration(1, _DAY)] = 300.0
    key_prefix: Annotated[str, _NAMESPACE] = "idempotency"
    # New keys per principal, minute and process. 0: no limit.
    max_keys_per_principal: Annotated[int, WholeNumber(0, 1_000_000)] = 0
    # The first key encrypts; all of them decrypt.
    encryption_keys: Annotated[tuple[bytes, ...], CipherKeys((16, 24, 32))] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class EventsSettings:
    """Retention of events, and timeouts of event streams."""

    keep_days: Annotated[float, Duration(0, _YEARS_100_IN_DAYS, "d")] = 0.0
    heartbeat_seconds: Annotated[float, Duration(0.1, _HOUR)] = 15.0
    stall_seconds: Annotated[float, Duration(0.1, _HOUR)] = 30.0
    retention_interval: Annotated[float, Duration(1, 30 * _DAY, named=False)] = _HOUR


@dataclass(frozen=True, slots=True)
class AttachmentsSettings:
    """Limits on attachments of tasks, and garbage collection of their bytes."""

    max_upload_bytes: Annotated[int, WholeNumber(1, 1024**4)] = 100 * 1024**2
    # 0: no quota.
    max_bytes_per_principal: Annotated[int, WholeNumber(0, 1024**5)] = 0
    # Empty: all are allowed.
    allowed_media_types: Annotated[tuple[str, ...], _MEDIA_TYPES] = ()
    reject_media_type_mismatch: Annotated[bool, Flag()] = True
    gc_batch_size: Annotated[int, WholeNumber(1, 10_000)] = 500
    # 0: no automatic garbage collection.
    gc_interval: Annotated[float, Duration(0, 365 * _DAY, named=False)] = _DAY
    gc_grace: Annotated[float, Duration(0, 365 * _DAY, named=False)] = _DAY
    enable_archive_inspection: Annotated[bool, Flag()] = False


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Limits on the inspection of archives."""

    max_entries: Annotated[int, WholeNumber(1, 10_000_000)] = 10_000
    max_total_unpacked_bytes: Annotated[int, WholeNumber(1, 1024**4)] = 1024**3
    max_path_length: Annotated[int, WholeNumber(1, 65_535)] = 1024


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Limits on normalizing and inserting messages."""

    max_message_bytes: Annotated[int, WholeNumber(1024, 1024**3)] = 10 * 1024**2
    # Each batch is one transaction.
    max_batch: Annotated[int, WholeNumber(1, 1000)] = 1000
    # Also the limit for a single entry, which has its text twice: unchanged and cleaned.
    max_batch_bytes: Annotated[int, WholeNumber(1024, 1024**3)] = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class TurnsSettings:
    """The brain that answers messages, the retention of message keys, and limits on messages and turns."""

    brain: Annotated[str, _BRAIN] = "onceward.hub.refund_desk:brain"
    # Concurrent turns per process.
    workers: Annotated[int, WholeNumber(1, 1024)] = 16
    max_attempts: Annotated[int, WholeNumber(1, 100)] = 3
    api_ttl_seconds: Annotated[float, Duration(0, 30 * _DAY)] = 300.0
    beat_ttl_seconds: Annotated[float, Duration(0, 30 * _DAY)] = 60.0
    # Interval of the search for turns whose process died.
    sweep_seconds: Annotated[float, Duration(0.05, _HOUR)] = 1.0
    # Limits: bytes of a message with its metadata, messages of a turn, their bytes, and queued turns of a session.
    max_message_bytes: Annotated[int, WholeNumber(1, 1024**3)] = 256 * 1024
    max_messages: Annotated[int, WholeNumber(1, 1_000_000)] = 200
    max_bytes: Annotated[int, WholeNumber(1, 1024**3)] = 1024**2
    max_queued: Annotated[int, WholeNumber(0, 1_000_000)] = 20


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Host names and origins that the hub accepts, besides its own address."""

    allowed_hosts: Annotated[tuple[str, ...], _HOSTS] = ()
    allowed_origins: Annotated[tuple[str, ...], _ORIGINS] = ()


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, one attribute for each table. `sources` maps the settings that are not defaults to their source."""

    hub: HubSettings = HubSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    events: EventsSettings = EventsSettings()
    attachments: AttachmentsSettings = AttachmentsSettings()
    attachments_archive: ArchiveSettings = ArchiveSettings()
    ingest: IngestSettings = IngestSettings()
    turns: TurnsSettings = TurnsSettings()
    auth: AuthSettings = AuthSettings()
    sources: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False)

    @property
    def data_folder(self) -> Path:
        return Path(self.hub.data_dir).expanduser()

    @property
    def database_url(self) -> str:
        return self.hub.database or self.file_url("hub.db")

    @property
    def ledger_url(self) -> str:
        """The PostgreSQL database of the rows, or else a separate SQLite file, so that claims never wait for rows."""
        if self.hub.ledger:
            return self.hub.ledger
        return self.file_url("ledger.db") if self.database_url.startswith("sqlite:") else self.database_url

    @property
    def retain_seconds(self) -> float:
        return self.idempotency.default_ttl_hours * 3600

    @property
    def blobs_url(self) -> str:
        return self.hub.blobs or (self.data_folder / "blobs").absolute().as_uri()

    def file_url(self, name: str) -> str:
        """Return the URL of a SQLite file in the data folder."""
        return "sqlite:///" + quote(str(self.data_folder / name))


# Flags whose name differs from their key.
_FLAGS = {("idempotency", "key_prefix"): "namespace"}


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[tuple[str, str], object]) -> Config:
    """Load and check the settings from a file, the environment and the flags.

    For `None`, the file is `onceward.toml`, if it exists. Flags are identified by table and key; those that are `None`
    were not given. Raises `InvalidConfig`.
    """
    found: dict[tuple[str, str], tuple[object, str]] = {}
    for name, value, source in _from_file(file):
        found[name] = _read(name, value, source, as_text=False), source
    for name, text, source in _from_environment(environ):
        found[name] = _read(name, text, source, as_text=True), source
    for name, given in flags.items():
        if given is not None:
            source = f"flag --{_FLAGS.get(name, name[1]).replace('_', '-')}"
            found[name] = _read(name, given, source, as_text=isinstance(given, str)), source
    tables = {
        _attribute(table): kind(**{key: value for (of, key), (value, _) in found.items() if of == table})
        for table, kind in TABLES.items()
    }
    config = Config(**tables, sources={name: source for name, (_, source) in found.items()})
    _check_together(config)
    return config


def effective_settings(config: Config) -> dict[str, dict[str, dict[str, Any]]]:
    """Return every setting by table and key: its value as in TOML, with passwords masked, and its source."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for table in TABLES:
        values = getattr(config, _attribute(table))
        found[table] = {
            key: {
                "value": tomllib.loads(f"value = {kind.write(getattr(values, key))}")["value"],
                "source": config.sources.get((table, key), "default"),
            }
            for key, kind in setting_types(table).items()
        }
    return found


def effective(config: Config) -> str:
    """Format all settings as TOML, each with its source in a comment. Passwords are masked."""
    lines: list[str] = []
    for table in TABLES:
        lines += [f"[{table}]"]
        values = getattr(config, _attribute(table))
        for key, kind in setting_types(table).items():
            source = config.sources.get((table, key), "default")
            lines += [f"{key} = {kind.write(getattr(values, key))}  # {source}"]
        lines += [""]
    return "\n".join(lines[:-1]) + "\n"


TABLES: Mapping[str, type] = {
    "hub": HubSettings,
    "idempotency": IdempotencySettings,
    "events": EventsSettings,
    "attachments": AttachmentsSettings,
    "attachments.archive": ArchiveSettings,
    "ingest": IngestSettings,
    "turns": TurnsSettings,
    "auth": AuthSettings,
}


@functools.cache
def setting_types(table: str) -> Mapping[str, SettingType]:
    """Return the keys of a table in order, each with its type."""
    hints = typing.get_type_hints(TABLES[table], include_extras=True)
    return {one.name: hints[one.name].__metadata__[0] for one in dataclasses.fields(TABLES[table])}


def variable(table: str, key: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{table.replace('.', '__')}__{key}".upper()


def _attribute(table: str) -> str:
    return table.replace(".", "_")


def _read(name: tuple[str, str], value: object, source: str, *, as_text: bool) -> object:
    table, key = name
    kind = setting_types(table)[key]
    try:
        return kind.read(value, as_text=as_text)
    except ValueError:
        if isinstance(kind, CipherKeys | WebhookSecret | WebhookUrl):
            raise InvalidConfig(f"{table}.{key} ({source}): expected {kind.expected}") from None
        shown = setting.without_password(value) if isinstance(value, str) else value
        raise InvalidConfig(f"{table}.{key} ({source}): expected {kind.expected}, not {shown!r}") from None


def _from_file(file: Path | None) -> Iterator[tuple[tuple[str, str], object, str]]:
    if file is None:
        if not os.path.lexists(DEFAULT_FILE):
            return
        file = DEFAULT_FILE
    source = f"file {file}"
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidConfig(f"the configuration file {str(file)!r} does not exist") from None
    except OSError as error:
        raise InvalidConfig(f"the configuration file {str(file)!r} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InvalidConfig(f"the configuration file {str(file)!r} is nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number with too many digits
        raise InvalidConfig(f"the configuration file {str(file)!r} is not valid TOML: {error}") from None
    yield from _from_tables(tables, source)


def _from_tables(
    tables: Mapping[str, object], source: str, within: str = ""
) -> Iterator[tuple[tuple[str, str], object, str]]:
    for name, values in tables.items():
        table = within + name
        if not isinstance(values, dict):
            raise InvalidConfig(
                f"{table} ({source}): a setting must be in a table: {_either(f'[{of}]' for of in TABLES)}{_home(table)}"
            )
        if table not in TABLES:
            raise InvalidConfig(f"[{table}] ({source}): unknown table{_hint(table, TABLES)}")
        for key, value in values.items():
            if f"{table}.{key}" in TABLES:
                yield from _from_tables({key: value}, source, f"{table}.")
                continue
            if key not in setting_types(table):
                hint = _home(key) or _hint(key, setting_types(table))
                raise InvalidConfig(f"{table}.{key} ({source}): unknown setting{hint}")
            yield (table, key), value, source


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], str, str]]:
    names = {variable(table, key): (table, key) for table in TABLES for key in setting_types(table)}
    # A single underscore instead of two is a common mistake, which must not be ignored silently.
    mistakes = {name.replace("__", "_") for name in names}
    for name in environ:
        if name in names:
            yield names[name], environ[name], f"environment {name}"
        elif name.upper().startswith(PREFIX) and ("__" in name or name in mistakes):
            raise InvalidConfig(f"environment {name}: unknown setting{_hint(name.upper(), names)}")


def _check_together(config: Config) -> None:
    if 0 < config.hub.audit_keep_days < AUDIT_DAYS_MIN:
        source = config.sources.get(("hub", "audit_keep_days"), "default")
        raise InvalidConfig(
            f"hub.audit_keep_days ({source}): expected 0 (keep forever) or at least {AUDIT_DAYS_MIN}, not"
            f" {config.hub.audit_keep_days:g}"
        )
    if config.hub.workers > 1 and config.ledger_url.lower().startswith("memory:"):
        source = config.sources.get(("hub", "ledger"), "default")
        raise InvalidConfig(
            f"hub.ledger ({source}): a memory: ledger cannot be shared by several processes; with hub.workers ="
            f" {config.hub.workers}, use sqlite:///path, postgresql://… or redis://…"
        )


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _home(key: str) -> str:
    """Return a hint at the table that a misplaced setting belongs to."""
    tables = [table for table in TABLES if key in setting_types(table)]
    return f"; did you mean {key} in [{tables[0]}]?" if tables else ""


def _either(names: Iterator[str]) -> str:
    *first, last = names
    return ", ".join(first) + " or " + last
