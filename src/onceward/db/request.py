"""The request that a row was made for, kept on the row.

The ledger remembers the answer of a keyed request, but only after the row is committed. A process that dies in between
leaves a row and no answer, and the retry runs again. The key on the row, under a unique index, is what it then finds.
"""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass

from onceward.db.clock import time_text


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Who asked with which key. A row older than `kept_since` was made for an earlier use of the key, which is over."""

    digest: str
    kept_since: str


def request_key(principal: str, key: str | None, retain_seconds: float) -> RequestKey | None:
    """What a row is marked with; None for a request without a key."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{principal}\0{key}".encode()).hexdigest()
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=retain_seconds)
    return RequestKey(digest, time_text(since))
