"""From a URL to a store. Drivers are imported only by the scheme that needs them; connecting waits for first use."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from onceward.errors import InvalidStoreUrl
from onceward.store import Clock, Store

# Of Linux, macOS and Windows.
_NAME_BYTES_MAX = 255
_KNOWN = "memory: · sqlite:///relative.db · sqlite:////absolute.db · postgresql://… · redis://… · redis+cluster://…"


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """`clock` replaces the store's own clock, in microseconds since 1970; tests pin time with it."""
    if not isinstance(url, str) or not url:
        raise InvalidStoreUrl(f"a store URL is text, one of: {_KNOWN}")
    if not url.isprintable():
        raise InvalidStoreUrl(f"a store URL has no line breaks or other control characters; it is one of: {_KNOWN}")
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
        case "redis" | "rediss" | "redis+cluster" | "rediss+cluster":
            return _redis(url, clock)
        case _:
            raise InvalidStoreUrl(f"unknown scheme {scheme!r}; a store URL is one of: {_KNOWN}")


def _memory(rest: str, clock: Clock | None) -> Store:
    from onceward.store.memory import MemoryStore  # noqa: PLC0415  # as in the other schemes, on demand

    if rest.strip("/"):
        raise InvalidStoreUrl("memory: takes nothing after the colon; every ledger has a memory of its own")
    return MemoryStore(clock)


def _sqlite(url: str, clock: Clock | None) -> Store:
    from onceward.store.sqlite import SqliteStore  # noqa: PLC0415

    try:
        parts = urlsplit(url)
        path = unquote(parts.path)[1:]
        names = os.fsencode(path).split(b"/")
    except ValueError:  # also half a character
        raise InvalidStoreUrl(f"this is no URL; a store URL is one of: {_KNOWN}") from None
    if "\x00" in path or max(map(len, names)) > _NAME_BYTES_MAX:
        raise InvalidStoreUrl("no file can have the name in this sqlite: URL")
    if parts.netloc or not url.lower().startswith("sqlite:///") or not path or path == ":memory:":
        raise InvalidStoreUrl("write sqlite:///relative.db or sqlite:////absolute/path.db; for no file, memory:")
    if parts.query or parts.fragment:
        raise InvalidStoreUrl("sqlite: takes no options")
    return SqliteStore(path, clock)


def _postgres(url: str, clock: Clock | None) -> Store:
    try:
        from onceward.store.postgres import PostgresStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidStoreUrl("postgresql:// needs its driver: pip install 'onceward[postgres]'") from error
    return PostgresStore(url, clock)


def _redis(url: str, clock: Clock | None) -> Store:
    try:
        from onceward.store.redis import RedisStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidStoreUrl("redis:// needs its driver: pip install 'onceward[redis]'") from error
    return RedisStore(url, clock)
