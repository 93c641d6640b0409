"""The request that something was done for, kept with what was done.

The ledger remembers the answer of a keyed request, but only after the work is committed. A process that dies in between
leaves the work and no answer, and the retry runs again. The mark that the work carries, under a unique index, is what
the retry then finds.
"""

from __future__ import annotations

import datetime
import hashlib

from onceward.core.record import record
from onceward.db.clock import time_text


@record(frozen=True, slots=True)
class RequestKey:
    """Who asked with which key, and since when it is in use: the same for every run of one request, and for no other.

    `again` says that an earlier run may have left something. A row older than `kept_since` was made for an earlier use
    of the key, which is over.
    """

    digest: str
    kept_since: str = ""
    again: bool = True


def request_of(principal: str, key: str | None, began_at: int, attempt: int) -> RequestKey | None:
    """What the work of a request is marked with; None for one without a key. `began_at` is when the key came into use."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{principal}\0{key}\0{began_at}".encode()).hexdigest()
    return RequestKey(digest, again=attempt > 1)


def request_key(principal: str, key: str | None, retain_seconds: float) -> RequestKey | None:
    """What a row is marked with; None for a request without a key."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{principal}\0{key}".encode()).hexdigest()
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=retain_seconds)
    return RequestKey(digest, time_text(since))
