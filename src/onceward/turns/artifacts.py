"""What a brain has computed, kept for the next run of the turn, as far as the brain declares that it may be.

An artifact is a row: its name, the fingerprint of the input, and that of the dependencies where they count. Unlike an
effect it is computed again as soon as one of them changes. Large ones lie among the blobs; bytes that are gone, because
the collection of garbage took them or a disk did, only mean that they are computed again.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from onceward.blobs import BlobStore
from onceward.core import value as values
from onceward.core.scalar import Unkeepable
from onceward.db.clock import new_id, time_text
from onceward.db.engine import Database, Transaction
from onceward.errors import OncewardError
from onceward.terms import RESULT_BYTES_MAX
from onceward.turns.invoke import invoke
from onceward.turns.reuse import Reuse, Scope, reuse_rules
from onceward.turns.threads import in_thread
from onceward.turns.turn import Clock, now_utc

# What a row holds itself; larger values are blobs where there is a place for them.
INLINE_BYTES_MAX = 64 * 1024
# An artifact that does not depend on versions has this in their place.
_ANY = ""

_SAME = "principal = :principal AND tenant_id = :tenant_id AND session_key = :session_key AND name = :name"
_FIND = text(f"""
    SELECT value, blob_sha256, blob_key, created_at, expires_at FROM artifacts
    WHERE {_SAME} AND input_fp = :input_fp AND dep_fp = :dep_fp
""")  # noqa: S608  # put together from constants
_OTHERS = text(f"SELECT input_fp = :input_fp FROM artifacts WHERE {_SAME} ORDER BY created_at DESC LIMIT 100")  # noqa: S608
_PUT = text("""
    INSERT INTO artifacts (principal, tenant_id, session_key, name, input_fp, dep_fp, value, blob_sha256, blob_key,
                           created_at, expires_at)
    VALUES (:principal, :tenant_id, :session_key, :name, :input_fp, :dep_fp, :value, :blob_sha256, :blob_key,
            :created_at, :expires_at)
    ON CONFLICT (principal, tenant_id, session_key, name, input_fp, dep_fp) DO UPDATE SET
        value = excluded.value, blob_sha256 = excluded.blob_sha256, blob_key = excluded.blob_key,
        created_at = excluded.created_at, expires_at = excluded.expires_at
""")
_KEY = "principal, tenant_id, session_key, name, input_fp, dep_fp"
_PURGE = text(f"""
    DELETE FROM artifacts WHERE ({_KEY}) IN (
        SELECT {_KEY} FROM artifacts WHERE expires_at <= :now ORDER BY expires_at LIMIT :limit
    )
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an artifact was used again, or why not. `computed_at` is when the value was computed that is used."""

    name: str
    reused: bool
    reason: str
    input_fp: str
    dep_fp: str
    computed_at: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A kept value, or why there is none that can be used."""

    reason: str
    body: bytes | None = None
    computed_at: str = ""


class Artifacts:
    """The artifacts of one run of a turn: those of its own session, for its own input and versions.

    `metadata_keys` are those that are part of `input_fp`, for `explain`.
    """

    def __init__(
        self,
        database: Database,
        *,
        principal: str,
        tenant_id: str,
        session_key: str,
        input_fp: str,
        dep_fp: str,
        reuse: Mapping[str, Mapping[str, object]],
        metadata_keys: Collection[str] = (),
        blobs: BlobStore | None = None,
        now: Clock = now_utc,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._session = {"principal": principal, "tenant_id": tenant_id, "session_key": session_key}
        self._input_fp = input_fp
        self._dep_fp = dep_fp
        self._rules = reuse_rules(reuse)
        self._metadata = f"metadata ({', '.join(sorted(metadata_keys))})" if metadata_keys else ""
        self._now = now
        self._explained: list[Explanation] = []

    async def get(
        self, name: str, compute: Callable[[], Any], *, revalidate: Callable[[Any], Any] | None = None
    ) -> Any:
        """What `compute` gives (`def` or `async def`), or what it gave before where that may be used again.

        `revalidate` is asked with a value that the declaration does not trust by itself.
        """
        rule = self._rules.get(name)
        if rule is None or rule.scope is Scope.NEVER:
            reason = "its use is not declared, so it is never used again" if rule is None else "its scope is never"
            return await self._compute(name, compute, None, reason)
        found = await in_thread(self._find, name, rule)
        if found.body is not None:
            try:
                value = values.decode(found.body)
            except OncewardError as error:
                return await self._compute(name, compute, rule, str(error))
            refusal = await _refusal(rule, value, revalidate or rule.revalidate)
            if refusal is None:
                self._explain(name, found.reason, found.computed_at, reused=True)
                return value
            return await self._compute(name, compute, rule, refusal)
        return await self._compute(name, compute, rule, found.reason)

    def explain(self, name: str | None = None) -> list[Explanation]:
        """Why each artifact that was asked for so far was or was not used again, in the order of asking."""
        return [one for one in self._explained if name in {None, one.name}]

    def _explain(self, name: str, reason: str, computed_at: str, *, reused: bool) -> None:
        self._explained.append(Explanation(name, reused, reason, self._input_fp, self._dep_fp, computed_at))

    async def _compute(self, name: str, compute: Callable[[], Any], rule: Reuse | None, reason: str) -> Any:
        value = await invoke(compute, {})
        at = self._now()
        if rule is not None:
            try:
                body = values.encode(value, RESULT_BYTES_MAX)
            except (Unkeepable, ValueError, RecursionError) as error:
                reason += f"; its value cannot be kept: {error}"
            else:
                if len(body) > RESULT_BYTES_MAX:
                    reason += f"; its value is larger than {RESULT_BYTES_MAX} bytes and is not kept"
                else:
                    reason += await in_thread(self._put, name, rule, body, at)
        self._explain(name, reason, time_text(at), reused=False)
        return value

    # The rows.

    def _row(self, name: str, rule: Reuse) -> dict[str, str]:
        depends = rule.scope is Scope.SAME_INPUT_SAME_DEP
        return {
            **self._session,
            "name": name,
            "input_fp": self._input_fp,
            "dep_fp": self._dep_fp if depends else _ANY,
        }

    def _find(self, name: str, rule: Reuse) -> _Found:
        row = self._row(name, rule)
        with self._database.read() as tx:
            there = tx.execute(_FIND, row).one_or_none()
            if there is None:
                return _Found(_reason(tx, row, self._metadata or "metadata"))
        value, sha256, blob_key, created_at, expires_at = there
        if expires_at is not None and expires_at <= time_text(self._now()):
            return _Found(f"it expired at {expires_at}")
        body = value.encode() if value is not None else self._read_blob(blob_key, sha256)
        if body is None:
            return _Found("its bytes are gone or damaged")
        same = "same input and dependencies" if row["dep_fp"] else "same input"
        same += f", with {self._metadata}" if self._metadata else ""
        return _Found(f"{same}; computed at {created_at}", body, created_at)

    def _read_blob(self, blob_key: str, sha256: str) -> bytes | None:
        if self._blobs is None:
            return None
        try:
            body = b"".join(self._blobs.read(blob_key))
        except OncewardError:
            # It can be computed again, whatever is the matter with the store.
            return None
        return body if hashlib.sha256(body).hexdigest() == sha256 else None

    def _put(self, name: str, rule: Reuse, body: bytes, at: datetime.datetime) -> str:
        """Keep it; what there is to say about that is empty when it went well."""
        row: dict[str, str | None] = {
            **self._row(name, rule),
            "value": None,
            "blob_sha256": None,
            "blob_key": None,
            "created_at": time_text(at),
            "expires_at": time_text(at + datetime.timedelta(seconds=rule.ttl_seconds)),
        }
        if len(body) > INLINE_BYTES_MAX and self._blobs is not None:
            try:
                with self._blobs.spool() as spool:
                    spool.write(body)
                    spool.finish()
                    key = self._blobs.put(spool, new_id("art"))
                    with self._blobs.guarded():
                        # The collection may have been here, and waits from now on until the row is.
                        self._blobs.ensure(spool, key)
                        with self._database.write() as tx:
                            tx.execute(_PUT, {**row, "blob_sha256": spool.sha256, "blob_key": key})
            except OncewardError as error:
                # A turn does not fail because something that can be computed again has no place to lie.
                return f"; its value could not be kept: {error}"
            return ""
        with self._database.write() as tx:
            tx.execute(_PUT, {**row, "value": body.decode("ascii")})
        return ""


async def _refusal(rule: Reuse, value: Any, revalidate: Callable[[Any], Any] | None) -> str | None:
    """Why a kept value may not be used after all; None when it may."""
    if not rule.requires_revalidate:
        return None
    if revalidate is None:
        return "it has to be revalidated, and nobody says how"
    holds = await invoke(functools.partial(revalidate, value), {})
    return None if holds else "its revalidation said no"


def _reason(tx: Transaction, row: Mapping[str, str], metadata: str) -> str:
    """Why there is no artifact: never computed, or for something else."""
    same_input = set(tx.execute(_OTHERS, row).scalars())
    if not same_input:
        return "it was not computed in this session yet"
    if not any(same_input):
        return f"the input is different: other messages, or other {metadata}"
    return "the dependencies have other versions" if row["dep_fp"] else "it was kept under another declaration"


def purge_artifacts(tx: Transaction, now: datetime.datetime, limit: int = 500) -> int:
    """Delete at most so many artifacts whose time is over; repeat until it says 0. The bytes of large ones are swept
    with the garbage.
    """
    return tx.execute(_PURGE, {"now": time_text(now), "limit": limit}).rowcount
