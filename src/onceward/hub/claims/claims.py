"""Operations on claims for operators: list, show, resolve, abandon, forget and purge.

A doubt is resolved by compare-and-set: the entry must still be in doubt under the version that the operator checked.
The operator's name and reason are recorded.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from onceward.core.claim import Entry, Status, wire_status
from onceward.core.json_text import checked, refused
from onceward.core.key import CUT, KEY_CHARACTERS_SHOWN, check_key, check_scope, short_key
from onceward.core.log_event import log_event
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, pack, unpack
from onceward.core.verdict import Committed, Final, NotCommitted
from onceward.errors import Conflict, InvalidKey, InvalidOption, NotFound, OncewardError, OutcomeNotKept
from onceward.http.stored.codec import ResponseCodec
from onceward.hub.claims.given_response import (
    GivenResponse,
    check_readable,
    checked_response,
    is_http,
    kept_response,
    response_body,
)
from onceward.hub.db.page import not_a_cursor, parse_cursor
from onceward.ledger.internals import dispatcher_of
from onceward.ledger.ledger import Ledger
from onceward.store import PAGE_MAX
from onceward.tools.keys import is_ever

COMMITTED, NOT_COMMITTED = "committed", "not_committed"
VERDICTS = (COMMITTED, NOT_COMMITTED)
REASON_BYTES_MAX = 500

_log = logging.getLogger("onceward.hub")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Cursor of a list with the oldest first: created_at in microseconds, scope and key of the page's last entry.
_OLDEST = re.compile(r"(\d{1,18})\0([^\0]{1,1024})\0([^\0]{1,1024})", re.ASCII)


async def list_claims(
    ledger: Ledger, scope: str | None, status: str | None, limit: int, *, oldest: bool = False, after: str = ""
) -> dict[str, Any]:
    """Return a page of entries after the cursor, in the order of the store; this reads only the page.

    `oldest` sorts by age. Each page then reads every matching entry, but keeps at most a page of them in memory.
    """
    _check_names(ledger, scope)
    listed = _oldest if oldest else _stored
    entries, following = await listed(ledger, scope, status, limit, from_cursor(after))
    cursor = to_cursor(following)
    now = await _now(ledger) if entries else 0
    # `next` is for clients of earlier versions.
    return {
        "claims": [claim_json(ledger, entry, now) for entry in entries],
        "next_after": cursor,
        "has_more": cursor is not None,
        "next": cursor,
    }


async def _stored(
    ledger: Ledger, scope: str | None, status: str | None, limit: int, after: str
) -> tuple[list[Entry], str]:
    # A cursor has one NUL between its two parts. Stored texts contain none, and PostgreSQL does not accept any.
    if after.count("\0") > 1:
        raise not_a_cursor()
    try:
        page = await ledger.scan(scope, status, after=after, limit=limit)
    except InvalidOption:
        raise not_a_cursor() from None
    entries = list(page.entries)
    # A page may be short, or even empty, although more entries follow.
    while page.next and len(entries) < limit:
        page = await ledger.scan(scope, status, after=page.next, limit=limit - len(entries))
        entries += page.entries
    return entries, page.next


async def _oldest(
    ledger: Ledger, scope: str | None, status: str | None, limit: int, after: str
) -> tuple[list[Entry], str]:
    behind = (-1, "", "")
    if after:
        position = parse_cursor(after, _OLDEST)
        behind = (int(position[1]), position[2], position[3])
    found: list[Entry] = []
    following = ""
    while True:
        page = await ledger.scan(scope, status, after=following, limit=PAGE_MAX)
        found += (entry for entry in page.entries if _age(entry) > behind)
        found = sorted(found, key=_age)[: limit + 1]
        following = page.next
        if not following:
            break
    more = len(found) > limit
    return found[:limit], "\0".join(map(str, _age(found[limit - 1]))) if more else ""


def _age(entry: Entry) -> tuple[int, str, str]:
    return entry.created_at, entry.scope, entry.key


async def namespaces(ledger: Ledger) -> set[str]:
    """Return the namespaces of the store's first entries, of all ledgers in it."""
    page = await dispatcher_of(ledger).call(lambda store: store.scan(None, None, "", PAGE_MAX))
    return {entry.scope.partition(":")[0] for entry in page.entries}


async def show_claim(ledger: Ledger, codec: ResponseCodec, scope: str, key: str) -> dict[str, Any]:
    """Return one entry with its recorded outcome."""
    _check_names(ledger, scope, key)
    entry = await ledger.read(scope, key)
    if entry is None:
        raise _no_claim(scope)
    return await _whole(ledger, codec, entry)


async def _whole(ledger: Ledger, codec: ResponseCodec, entry: Entry) -> dict[str, Any]:
    return {
        **claim_json(ledger, entry, await _now(ledger)),
        "recovery_point": recovery_point_of(codec, entry),
        "outcome": await _outcome(ledger, codec, entry),
    }


async def resolve_claim(
    ledger: Ledger,
    codec: ResponseCodec,
    actor: str,
    *,
    scope: str,
    key: str,
    version: int,
    verdict: str,
    reason: str,
    value: Any = None,
    response: GivenResponse | None = None,
    keeps_value: bool = True,
) -> dict[str, Any]:
    """Resolve a doubt: the effect happened, or it did not and will not. Return the entry after that.

    An effect that happened has a value or, on an HTTP claim, the response that the client's retry gets. Without a
    response, the retry gets 409 `outcome-not-kept`; with `keeps_value=False`, other callers get `OutcomeNotKept`, too.
    `codec` is the one with which the application stores responses.
    """
    _check_names(ledger, scope, key)
    checked("reason", reason, REASON_BYTES_MAX)
    if verdict not in VERDICTS:
        raise refused("verdict", f"must be {' or '.join(VERDICTS)}")
    for name, given in (("value", value), ("response", response)):
        if verdict == NOT_COMMITTED and given is not None:
            raise refused(name, "requires the verdict committed")
    if value is not None and response is not None:
        raise refused("response", "cannot be combined with value")
    if is_http(scope) and value is not None:
        raise refused("value", "is not stored for an HTTP claim; give the response (status, headers and body) instead")
    if not is_http(scope) and response is not None:
        raise refused("response", "is only for HTTP claims, whose scope begins with http:; give the value instead")
    if pack(value, INLINE_BYTES_MAX) is None:
        raise refused("value", f"must be at most {INLINE_BYTES_MAX} bytes when encoded")
    parts = None
    if response is not None:
        parts = checked_response(response, codec)
        await check_readable(ledger, codec, scope)
    before = await _found(ledger, scope, key, version, Status.IN_DOUBT)
    resolution: Committed | NotCommitted = NotCommitted(_final(reason))
    if verdict == COMMITTED and parts is not None:
        resolution = Committed(kept_response(codec, dataclasses.replace(before, version=version), *parts))
    elif verdict == COMMITTED:
        resolution = Committed(NOTHING if is_http(scope) or not keeps_value else value)
    note = f"{verdict} by {actor}: {reason}"
    if not await ledger.resolve(scope, before.key, version, resolution, note=note, retain_ever=is_ever(scope)):
        now = await ledger.read(scope, before.key) or before
        raise _changed(now, version, "only a claim that is in_doubt can be resolved")
    return await show_claim(ledger, codec, scope, before.key)


async def abandon_claim(
    ledger: Ledger,
    codec: ResponseCodec,
    actor: str,
    *,
    scope: str,
    key: str,
    version: int,
    reason: str,
    force: bool = False,
) -> dict[str, Any]:
    """End a claim whose holder will not end it: as failed if it may be repeated, otherwise as in doubt.

    It is refused while the lease is running, unless the holder is proved dead from here. `force` ends the claim anyway,
    always as in doubt.
    """
    _check_names(ledger, scope, key)
    checked("reason", reason, REASON_BYTES_MAX)
    before = await _found(ledger, scope, key, version, Status.IN_PROGRESS)
    if not await ledger.abandon(scope, before.key, version, note=f"abandoned by {actor}: {reason}", force=force):
        now = await ledger.read(scope, before.key) or before
        if now.status is Status.IN_PROGRESS and now.version == version:
            raise Conflict(
                f"the lease of this claim runs until {_time(now.lease_until)}, and its holder may be alive. Wait until"
                " then, or use force: the claim is then in doubt, and its holder may still settle it"
            )
        raise _changed(now, version, "only a claim that is in_progress can be abandoned")
    return await show_claim(ledger, codec, scope, before.key)


async def forget_claim(
    ledger: Ledger, codec: ResponseCodec, actor: str, *, scope: str, key: str, version: int, reason: str
) -> dict[str, Any]:
    """Remove a completed claim, so that the next call with its key runs the effect again. Return it as it was."""
    _check_names(ledger, scope, key)
    checked("reason", reason, REASON_BYTES_MAX)
    before = await _found(ledger, scope, key, version, Status.COMPLETED)
    shown_before = await _whole(ledger, codec, before)
    if not await ledger.forget(scope, before.key, version, note=f"forgotten by {actor}: {reason}"):
        now = await ledger.read(scope, before.key)
        if now is None:
            raise _no_claim(scope)
        raise _changed(now, version, _NOT_FORGOTTEN[now.status])
    key = short_key(before.key)
    log_event(_log.info, "claim_forgotten", scope=scope, key=key, version=version, actor=actor, reason=reason)
    return shown_before


# The rule that a claim with this status breaks, and what to do instead.
_NOT_FORGOTTEN = {
    Status.COMPLETED: "only a completed claim can be forgotten",
    Status.IN_PROGRESS: "only a completed claim can be forgotten, and its holder may be at work",
    Status.IN_DOUBT: "only a completed claim can be forgotten; resolve it first",
    Status.FAILED: "only a completed claim can be forgotten; the next call runs it again anyway",
}


def _changed(now: Entry, version: int, rule: str) -> Conflict:
    if now.version != version:
        return Conflict(f"the claim has version {now.version}, not {version}; nothing was changed. Check it again")
    return Conflict(f"the claim is {now.status.value}; {rule}; nothing was changed")


async def _found(ledger: Ledger, scope: str, key: str, version: int, status: Status) -> Entry:
    """Return the entry of a key. If the key is truncated as in the log, `version` and `status` must identify it."""
    entry = await ledger.read(scope, key)
    if entry is not None:
        return entry
    if len(key) != KEY_CHARACTERS_SHOWN + len(CUT) or not key.endswith(CUT):
        raise _no_claim(scope)
    found: list[Entry] = []
    after = ""
    while True:
        page = await ledger.scan(scope, status, after=after, limit=PAGE_MAX)
        found += (one for one in page.entries if one.version == version and short_key(one.key) == key)
        after = page.next
        if not after:
            break
    if not found:
        raise NotFound(
            f"the scope {scope!r} has no claim with status {status.value}, version {version} and a key that begins with"
            f" {key.removesuffix(CUT)!r}"
        )
    if len(found) > 1:
        raise Conflict(f"{len(found)} claims have a key that begins with {key.removesuffix(CUT)!r}; give the whole key")
    return found[0]


def _no_claim(scope: str) -> NotFound:
    return NotFound(f"the scope {scope!r} has no claim with this key")


async def purge_claims(ledger: Ledger) -> int:
    """Delete every entry whose retention is over, and return their number."""
    count = 0
    while deleted := await ledger.purge():
        count += deleted
    return count


async def _now(ledger: Ledger) -> int:
    """Return the time of the store's clock."""
    return (await dispatcher_of(ledger).read([])).now


def recovery_point_of(codec: ResponseCodec, entry: Entry) -> Any:
    """Return the recovery point of an entry as JSON shows it, or a text in parentheses if it cannot be decrypted here."""
    if not is_http(entry.scope.partition(":")[2]):
        return entry.recovery_point
    try:
        point = codec.decode_recovery(entry)
    except OutcomeNotKept as error:
        return f"({error})"
    return "(encrypted; the key is not configured here)" if isinstance(point, bytes) else point


def claim_json(ledger: Ledger, entry: Entry, now: int) -> dict[str, Any]:
    """Convert an entry to the JSON of all responses, without its outcome and its recovery point."""
    return {
        "scope": entry.scope.removeprefix(f"{ledger.namespace}:"),
        "key": entry.key,
        "status": wire_status(entry, now),
        "version": entry.version,
        "attempt": entry.attempt,
        "created_at": _time(entry.created_at),
        "claimed_at": _time(entry.claimed_at),
        "lease_until": _time(entry.lease_until) if entry.status is Status.IN_PROGRESS else None,
        "completed_at": _time(entry.completed_at),
        "expires_at": _time(entry.expires_at),
        "refuse_until": _time(entry.refuse_until),
        "not_done_count": entry.not_done_count,
        "repeatable": entry.repeatable,
        "user_id": entry.user_id or None,
        "endpoint": entry.endpoint or None,
        "note": entry.note or None,
    }


def _check_names(ledger: Ledger, scope: str | None, key: str | None = None) -> None:
    """Check scope and key as the ledger does, and name the field in the error."""
    full = f"{ledger.namespace}:{scope}" if scope else scope
    for name, text, check in (("scope", full, check_scope), ("key", key, check_key)):
        try:
            if text is not None:
                check(text)
        except InvalidKey as error:
            raise refused(name, str(error).removeprefix(f"the {name} ")) from None


def to_cursor(after: str) -> str | None:
    """Encode a store's cursor for a URL, because some contain NUL. None after the last page."""
    return base64.urlsafe_b64encode(after.encode()).decode().rstrip("=") or None


def from_cursor(text: str) -> str:
    try:
        after = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
    except ValueError:
        raise not_a_cursor() from None
    if text and not after:
        raise not_a_cursor()
    return after


async def _outcome(ledger: Ledger, codec: ResponseCodec, entry: Entry) -> dict[str, Any] | None:
    if entry.status is not Status.COMPLETED:
        return None
    body = await (ledger.body(entry) if entry.outcome.code is None else response_body(ledger, codec, entry))
    shown_outcome: dict[str, Any] = {"code": entry.outcome.code, "bytes": None if body is None else len(body)}
    if body is not None and len(body) <= INLINE_BYTES_MAX:
        shown_outcome["value"] = _value(entry, body)
    return shown_outcome


def _value(entry: Entry, body: bytes) -> Any:
    """Decode a recorded outcome as far as JSON allows: a response as its text, a value as itself."""
    if entry.outcome.code is not None:
        return body.decode("utf-8", "replace")
    try:
        value = unpack(body)
        json.dumps(value)
    except (OncewardError, TypeError, ValueError):
        return body.decode("utf-8", "replace")
    return value


def _final(reason: str) -> Final:
    """Return why the effect can no longer happen: the `Final` that the reason begins with, or `Final.OPERATOR`."""
    word = reason.partition(":")[0].strip()
    return next((one for one in Final if one.value == word), Final.OPERATOR)


def _time(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    time = _EPOCH + timedelta(microseconds=microseconds)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
