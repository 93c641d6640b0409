"""Artifacts: values that a brain computed, stored for later runs if the brain declares that they may be reused.

An artifact is a row, found by its name, the fingerprint of the input and, if its scope says so, the fingerprint of the
dependencies. Unlike an effect, it is computed again as soon as one of them changes. Large artifacts are stored as
blobs. If the bytes of a blob are missing, because gc or a disk lost them, the artifact is computed again.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from onceward.core import value as values
from onceward.core.scalar import Unkeepable
from onceward.errors import OncewardError
from onceward.hub.blobs import BlobStore
from onceward.hub.db.engine import Database, Transaction
from onceward.hub.db.raw_sql import RawStatement
from onceward.hub.db.timestamps import new_id, time_text
from onceward.hub.db_threads import in_thread
from onceward.hub.turns.artifacts.reuse import Reuse, Scope, reuse_rules
from onceward.hub.turns.model.turn import Clock, now_utc
from onceward.ledger.terms import RESULT_BYTES_MAX
from onceward.tools.invocation import invoke

# Larger values are stored as blobs, if there is a blob store.
INLINE_BYTES_MAX = 64 * 1024
# The `dep_fp` of an artifact that does not depend on versions.
_ANY = ""

_SAME = "principal = :principal AND tenant_id = :tenant_id AND session_key = :session_key AND name = :name"
_FIND = text(f"""
    SELECT value, blob_sha256, blob_key, created_at, expires_at FROM artifacts
    WHERE {_SAME} AND input_fp = :input_fp AND dep_fp = :dep_fp
""")  # noqa: S608  # built from constants
_OTHERS = text(f"SELECT input_fp = :input_fp FROM artifacts WHERE {_SAME} ORDER BY created_at DESC LIMIT 100")  # noqa: S608
_PUT = RawStatement("""
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
    """The reason why an artifact was or was not reused.

    Attributes:
        name: The artifact's name.
        reused: Whether a stored value was returned.
        reason: The reason, for people.
        input_fp: The fingerprint of the input.
        dep_fp: The fingerprint of the versions.
        computed_at: The time at which the returned value was computed.
    """

    name: str
    reused: bool
    reason: str
    input_fp: str
    dep_fp: str
    computed_at: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A stored value, or the reason why there is none that can be used."""

    reason: str
    body: bytes | None = None
    computed_at: str = ""


class Artifacts:
    """The artifacts of one run of a turn, for its session, input and versions. A brain gets them from its context.

    Args:
        database: The hub's database.
        principal: The turn's principal.
        tenant_id: The turn's tenant.
        session_key: The turn's session.
        input_fp: The fingerprint of the input.
        dep_fp: The fingerprint of the versions.
        reuse: When each artifact may be reused, by its name; see `reuse.py`.
        metadata_keys: The metadata keys that are part of `input_fp`, for `explain`.
        blobs: The store for large values; None keeps them in the database.
        now: The clock.

    Raises:
        errors.InvalidOption: `reuse` is not valid.
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
        """Return an artifact: a stored value if it may be reused, else the result of `compute`, which is stored.

        Args:
            name: The artifact's name.
            compute: Computes the value; `def` (it runs in a thread) or `async def`.
            revalidate: Called with a stored value whose declaration has `requires_revalidate`; returns whether it is
                still valid. Takes precedence over the `revalidate` of the declaration.

        Returns:
            The value. A value that cannot be stored is returned all the same.

        Raises:
            errors.StoreUnavailable: The database did not respond.
            Exception: Any exception of `compute` or `revalidate`.
        """
        rule = self._rules.get(name)
        if rule is None or rule.scope is Scope.NEVER:
            reason = "its reuse is not declared, so it is always computed" if rule is None else "its scope is 'never'"
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
        """Return why each requested artifact was or was not reused, in the order of the requests.

        Args:
            name: Only explain this artifact; None for all.

        Returns:
            One explanation for each `get` of this run.
        """
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
                reason += f"; its value cannot be stored: {error}"
            else:
                if len(body) > RESULT_BYTES_MAX:
                    reason += f"; its value is larger than {RESULT_BYTES_MAX} bytes and was not stored"
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
            return _Found("its stored bytes are missing or damaged")
        same = "same input and dependencies" if row["dep_fp"] else "same input"
        same += f", with {self._metadata}" if self._metadata else ""
        return _Found(f"{same}; computed at {created_at}", body, created_at)

    def _read_blob(self, blob_key: str, sha256: str) -> bytes | None:
        if self._blobs is None:
            return None
        try:
            body = b"".join(self._blobs.read(blob_key))
        except OncewardError:
            # A failing blob store does not matter: the value can be computed again.
            return None
        return body if hashlib.sha256(body).hexdigest() == sha256 else None

    def _put(self, name: str, rule: Reuse, body: bytes, at: datetime.datetime) -> str:
        """Store a value. Return an empty text, or the error if the blob store failed."""
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
                with self._blobs.temp_file() as temp_file:
                    temp_file.write(body)
                    temp_file.finish()
                    key = self._blobs.put(temp_file, new_id("art"))
                    with self._blobs.lock():
                        # gc may have deleted the blob before the lock was taken. Now it waits until the row is there.
                        self._blobs.ensure(temp_file, key)
                        self._write({**row, "blob_sha256": temp_file.sha256, "blob_key": key})
            except OncewardError as error:
                # The value can be computed again, so a failing blob store does not fail the turn.
                return f"; its value could not be stored: {error}"
            return ""
        self._write({**row, "value": body.decode("ascii")})
        return ""

    def _write(self, row: Mapping[str, str | None]) -> None:
        order = ("artifact", *self._session.values())
        self._database.writer.run_blocking(lambda tx: _PUT.count(tx, row), order)


async def _refusal(rule: Reuse, value: Any, revalidate: Callable[[Any], Any] | None) -> str | None:
    """Return why a stored value must not be reused; None if it may be."""
    if not rule.requires_revalidate:
        return None
    if revalidate is None:
        return "it requires revalidation, but no revalidate function was given"
    holds = await invoke(functools.partial(revalidate, value), {})
    return None if holds else "its revalidate function rejected the stored value"


def _reason(tx: Transaction, row: Mapping[str, str], metadata: str) -> str:
    """Return why no row was found: the artifact was never computed, or only for another input or other versions."""
    same_input = set(tx.execute(_OTHERS, row).scalars())
    if not same_input:
        return "it has not been computed in this session yet"
    if not any(same_input):
        return f"the input is different: other messages, or other {metadata}"
    return "the versions of its dependencies differ" if row["dep_fp"] else "it was stored under another scope"


def purge_artifacts(tx: Transaction, now: datetime.datetime, limit: int = 500) -> int:
    """Delete at most `limit` expired artifacts and return their number. Call it again until it returns 0.

    The blobs of large artifacts are deleted later, by gc.
    """
    return tx.execute(_PURGE, {"now": time_text(now), "limit": limit}).rowcount
