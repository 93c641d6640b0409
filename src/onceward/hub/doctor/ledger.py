"""Checks of the ledger: schema, privileges, clock, durability, doubts and claims without a holder."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import sqlalchemy
from sqlalchemy import text

from onceward.core.claim import Entry, Status
from onceward.hub.config.config import Config
from onceward.hub.config.setting import without_password
from onceward.hub.db.engine import open_database
from onceward.hub.doctor.check_result import CheckResult, ok, problem, warning
from onceward.hub.doctor.server import clock_check, file_durability, file_of, owner_url, postgres_durability
from onceward.store import PAGE_MAX, SCHEMA_VERSION, Schema, Store
from onceward.store.open import open_store
from onceward.store.postgres.roles import MISSING
from onceward.store.redis import REDIS_SCHEMES
from onceward.store.sqlite.schema import read_schema

# A doubt that nobody resolved within a day is forgotten by its caller, too.
DOUBT_SECONDS_MAX = 24 * 3600.0
_DOUBTS_MAX = 10_000


def ledger_checks(config: Config, clock: Callable[[], float]) -> Iterator[CheckResult]:
    """Check the ledger of a hub or of an application, without upgrading it."""
    url = config.ledger_url
    if url.startswith("memory:"):
        yield warning("ledger", "claims are in memory: they are lost when the hub stops", "use sqlite: or postgresql:")
        return
    if (file := file_of(url)) is not None and not file.exists():
        yield problem(
            "ledger", f"{str(file)!r} does not exist", "give the hub's folder with --data-dir, or start the hub"
        )
        return
    schema, durable = _server(config, file)
    if schema is not None:
        schema.check()
        if schema.upgraded_to == 0 and file is not None:
            yield ok("ledger", f"{without_password(url)} is empty; the hub creates its tables when it needs them")
            return
        if not schema.is_current:
            yield warning(
                "ledger",
                f"{without_password(url)} has schema {schema.upgraded_to}, and this version needs {SCHEMA_VERSION}",
                "back up the data; the next start of the hub, or onceward schema create, upgrades it",
            )
            return
    yield from durable
    with contextlib.closing(open_store(url)) as store:
        now = store.read([]).now / 1_000_000
        yield ok("ledger", f"{without_password(url)} is reachable")
        if file is None:
            yield clock_check("ledger-clock", now, clock)
        yield from _claims(store, now)


def _server(config: Config, file: Path | None) -> tuple[Schema | None, list[CheckResult]]:
    """Return the schema of the ledger without upgrading it (None on Redis), and findings about its server."""
    url, check = config.ledger_url, "ledger-durability"
    if file is not None:
        address = f"file:{quote(str(file.absolute()))}?mode=rw"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            return read_schema(db), list(file_durability(check, file))
    if url.partition(":")[0].lower() in REDIS_SCHEMES:
        return None, list(_redis_durability(check, url))
    with contextlib.closing(open_database(url, pool_size=1)) as database:
        with database.read() as tx:
            if not sqlalchemy.inspect(tx).has_table("platform_idempotency_meta"):
                return Schema(), []
            numbers = "(to_jsonb(m)->>'readable_from')::integer, (to_jsonb(m)->>'upgraded_to')::integer"
            row = tx.execute(text(f"SELECT m.schema_version, {numbers} FROM platform_idempotency_meta m")).one()  # noqa: S608
            role, missing = tx.execute(text(f"SELECT current_user, ({MISSING})")).one()  # constants
        findings = list(postgres_durability(check, database))
        if missing is not None:
            advice = f"as the owner of the tables, run: onceward schema create --ledger {owner_url(url)} --role {role}"
            findings.append(problem("ledger-privileges", f"the role {role} lacks {missing}", advice))
        return Schema.stored(*row), findings


def _product(info: Mapping[str, str]) -> str:
    """Return the name and the version of the server. Valkey also reports the version of Redis that it replaces."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return " ".join(["Redis", *filter(None, [info.get("redis_version")])])


def _redis_durability(check: str, url: str) -> Iterator[CheckResult]:
    from onceward.store.redis.connection import parse_target, server_info  # noqa: PLC0415  # only with Redis

    info = server_info(url)
    if info.get("aof_enabled") == "1" and info.get("maxmemory_policy") == "noeviction":
        if info.get("appendfsync", "always") == "always":
            yield ok(check, f"{_product(info)} has an append-only file and evicts nothing")
        else:
            yield warning(
                check,
                f"{_product(info)} has appendfsync {info['appendfsync']}: if the server crashes, it may lose writes that"
                " it acknowledged shortly before",
                "set appendfsync always",
            )
        return
    detail = f"this {_product(info)} may lose acknowledged writes"
    advice = "set appendonly yes and maxmemory-policy noeviction"
    if parse_target(url).volatile_ok:
        yield warning(check, f"{detail}, and its URL accepts that (volatile=ok)", advice)
    else:
        yield problem(check, f"{detail}, so it refuses effects that must not be repeated", advice)


def _claims(store: Store, now: float) -> Iterator[CheckResult]:
    doubts = _in_doubt(store)
    if doubts:
        oldest = min(doubts, key=lambda entry: entry.claimed_at)
        age = now - oldest.claimed_at / 1_000_000
        claims = "1 claim is" if len(doubts) == 1 else f"{len(doubts)} claims are"
        detail = f"{claims} in doubt, the oldest since {age / 3600:.1f} hours"
        advice = "onceward claims list --status in_doubt --oldest, then onceward claims resolve"
        result = problem if age > DOUBT_SECONDS_MAX else warning
        yield result("doubts", detail, advice, count=len(doubts), oldest_seconds=age)
    else:
        yield ok("doubts", "no claim is in doubt", count=0)
    lapsed = store.lapsed(PAGE_MAX)
    if lapsed:
        yield warning(
            "lapsed",
            f"claims that must not be repeated have lost their holder, and are not in doubt yet: {len(lapsed)}",
            "start the hub, or ledger.purge_every in the application: it puts them in doubt",
            count=len(lapsed),
        )
    else:
        yield ok("lapsed", "no claim has lost its holder", count=0)


def _in_doubt(store: Store) -> list[Entry]:
    found: list[Entry] = []
    after = ""
    while len(found) < _DOUBTS_MAX:
        page = store.scan(None, Status.IN_DOUBT, after, PAGE_MAX)
        found += page.entries
        after = page.next
        if not after:
            break
    return found
