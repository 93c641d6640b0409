"""Store URLs. A driver is imported only for the scheme that needs it, and a store connects on first use."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from onceward.errors import InvalidStoreUrl, install_command
from onceward.store import Clock, Store
from onceward.store.redis import REDIS_SCHEMES

# The longest file name on Linux, macOS and Windows.
_NAME_BYTES_MAX = 255
_KNOWN = (
    "memory: · sqlite:///relative.db · sqlite:////absolute.db · postgresql://… · redis://… · redis+cluster://…"
    " · valkey://… · valkey+cluster://…"
)


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """Open the store that a URL names. It connects on first use.

    Args:
        url: `memory:`, `sqlite:///path`, `postgresql://…`, `redis://…` or `redis+cluster://…`. `valkey` means the same as
            `redis`.
        clock: Replaces the store's own clock, in microseconds since 1970. Tests pin the time with it.

    Returns:
        The store.

    Raises:
        InvalidStoreUrl: If the URL is not valid, or its driver is not installed.
    """
    if not isinstance(url, str) or not url:
        raise InvalidStoreUrl(f"a store URL must be text, one of: {_KNOWN}")
    if not url.isprintable():
        raise InvalidStoreUrl(
            f"a store URL must not contain line breaks or other control characters; it is one of: {_KNOWN}"
        )
    scheme, separator, rest = url.partition(":")
    if not separator:
        raise InvalidStoreUrl(f"{url!r} has no scheme; a store URL is one of: {_KNOWN}")
    match scheme.lower():
        case "memory":
            return _memory(rest, clock)
        case "sqlite":
            return _sqlite(url, clock)
        case "postgresql" | "postgres" | "postgresql+psycopg":
            return _postgres(url, clock)
        case name if name in REDIS_SCHEMES:
            return _redis(url, clock)
        case _:
            raise InvalidStoreUrl(f"unknown scheme {scheme!r}; a store URL is one of: {_KNOWN}")


def _memory(rest: str, clock: Clock | None) -> Store:
    from onceward.store.memory import MemoryStore  # noqa: PLC0415  # on demand, as for the other schemes

    if rest.strip("/"):
        raise InvalidStoreUrl("a memory: URL must end after the colon; each ledger has its own memory")
    return MemoryStore(clock)


def _sqlite(url: str, clock: Clock | None) -> Store:
    from onceward.store.sqlite.store import SqliteStore  # noqa: PLC0415

    try:
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        names = os.fsencode(path).split(b"/")
    except ValueError:  # a lone surrogate raises this too
        raise InvalidStoreUrl(f"the store URL is malformed; a store URL is one of: {_KNOWN}") from None
    if "\x00" in path or max(map(len, names)) > _NAME_BYTES_MAX:
        raise InvalidStoreUrl("the path in the sqlite: URL is not a valid file name")
    if parts.netloc or not url.lower().startswith("sqlite:///") or not path or path == ":memory:":
        raise InvalidStoreUrl(
            "a sqlite: URL must name a file: sqlite:///relative.db or sqlite:////absolute/path.db; for a store without a"
            " file, use memory:"
        )
    if parts.query or parts.fragment:
        raise InvalidStoreUrl("sqlite: URLs do not take options")
    return SqliteStore(path, clock)


def _postgres(url: str, clock: Clock | None) -> Store:
    try:
        from onceward.store.postgres.store import PostgresStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidStoreUrl(f"postgresql:// needs its driver: {install_command('postgres')}") from error
    return PostgresStore(url, clock)


def _redis(url: str, clock: Clock | None) -> Store:
    try:
        from onceward.store.redis.store import RedisStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidStoreUrl(f"redis:// needs its driver: {install_command('redis')}") from error
    return RedisStore(url, clock)
