"""Request keys: the mark of a keyed request on the rows that it wrote.

The ledger records the response of a keyed request only after the work is committed. If the process dies in between, the
work is there without a response, and the retry runs again. It then finds the work by its request key, which has a
unique index.
"""

from __future__ import annotations

import datetime
import hashlib

from onceward.core.record import record
from onceward.hub.db.timestamps import time_text


@record(frozen=True, slots=True)
class RequestKey:
    """Digest of principal, key and start of use: the same for every run of one request, and different for all others.

    `again` says that an earlier run may have left rows. A row older than `kept_since` belongs to an earlier use
    of the key, which has ended.
    """

    digest: str
    kept_since: str = ""
    again: bool = True


def request_of(principal: str, key: str | None, began_at: int, attempt: int) -> RequestKey | None:
    """Return the request key of a keyed request, else None. `began_at` is when the key came into use."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{principal}\0{key}\0{began_at}".encode()).hexdigest()
    return RequestKey(digest, again=attempt > 1)


def request_key(principal: str, key: str | None, retain_seconds: float) -> RequestKey | None:
    """Return the request key of a row that lasts for `retain_seconds`; None for a request without a key."""
    if key is None:
        return None
    digest = hashlib.sha256(f"{principal}\0{key}".encode()).hexdigest()
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=retain_seconds)
    return RequestKey(digest, time_text(since))
