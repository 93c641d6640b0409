"""Durability, clocks and URLs of the servers behind a database or a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import text

from onceward.hub.db.engine import Database
from onceward.hub.doctor.check_result import CheckResult, ok, problem, warning

# Rows have times of the hub's machine. Gc compares them with a grace period, and clients see them.
_SKEW_SECONDS_WARNING, _SKEW_SECONDS_MAX = 2.0, 60.0
_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
# How to make a store reachable.
START = "start the server, or correct the URL, user and password"


def file_durability(check: str, file: Path) -> Iterator[CheckResult]:
    """Check whether an SQLite file survives a restart of the machine."""
    kind = _file_system(file)
    if kind in _MEMORY_FILE_SYSTEMS:
        detail = f"{str(file)!r} is on {kind}: it is lost when the machine restarts"
        yield warning(check, detail, "move the data folder to a disk")
    else:
        yield ok(check, "SQLite syncs every commit to the disk (WAL, synchronous=FULL)")


def postgres_durability(check: str, database: Database) -> Iterator[CheckResult]:
    """Check whether a PostgreSQL server keeps its commits through a crash."""
    with database.read() as tx:
        off = [name for name in ("fsync", "full_page_writes") if tx.execute(text(f"SHOW {name}")).scalar() == "off"]
    if off:
        names = " and ".join(off)
        yield problem(check, f"{names} is off: a crash of the server can lose or damage rows", f"set {names} = on")
    else:
        yield ok(check, "fsync and full_page_writes are on, and every session uses synchronous_commit = on")


def clock_check(check: str, server_seconds: float, clock: Callable[[], float]) -> CheckResult:
    """Compare the clock of a server with this machine's, both in seconds since 1970."""
    skew = server_seconds - clock()
    detail = f"its clock is {abs(skew):.1f} seconds {'ahead of' if skew > 0 else 'behind'} this machine's"
    advice = "synchronize both clocks (NTP)"
    if abs(skew) >= _SKEW_SECONDS_MAX:
        return problem(check, detail, advice, skew_seconds=skew)
    if abs(skew) >= _SKEW_SECONDS_WARNING:
        return warning(check, detail, advice, skew_seconds=skew)
    return ok(
        check, f"it differs from this machine's clock by less than {_SKEW_SECONDS_WARNING:g} seconds", skew_seconds=skew
    )


def file_of(url: str) -> Path | None:
    """Return the file of an SQLite URL, or None."""
    return Path(unquote(urlsplit(url).path)[1:]) if url.startswith("sqlite:") else None


def owner_url(url: str) -> str:
    """Return a URL for an advice: without user and password, because the owner of the tables has its own."""
    parts = urlsplit(url)
    return f"postgresql://OWNER@{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _file_system(file: Path) -> str:
    """Return the type of the file system that has the file. Empty if the system does not tell."""
    try:
        mounts = [line.split(" ")[1:3] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return ""
    place = file.resolve()
    return max(
        ((point, kind) for point, kind in mounts if place.is_relative_to(point)),
        key=lambda mount: len(mount[0]),
        default=("", ""),
    )[1]
