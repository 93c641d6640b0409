"""The reason why a store failed, in the log: one warning for each cause, not one for each request.

Clients get a sentence without details. The operator needs the driver's own words, once every few seconds for as long as
the failure lasts, and never a password.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from onceward.errors import OncewardError

# One line for each cause in this time; the next one says how many were left out.
QUIET_SECONDS = 10.0
# Causes are few. More than this are one cause with changing details, and the oldest are forgotten.
CAUSES_MAX = 64
_CHARACTERS_MAX = 500

# What a driver may quote of a URL or a connection string.
_IN_URL = re.compile(r"(://[^\s/:@]{0,200}):[^\s@]{1,300}@")
_NAMED = re.compile(
    r"((?:password|passwd|secret|token|signature|credential)s?[\"']?\s{0,3}[=:]\s{0,3})[^\s&,;]{1,300}", re.IGNORECASE
)
# Ids, counts and addresses change from one failure to the next; the cause is the same.
_NUMBERS = re.compile(r"[0-9a-f]{8,200}|[0-9]{1,200}")

logger = logging.getLogger("onceward.store")


class FailureLog:
    """Used by every thread of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[str, tuple[float, int]] = {}  # when it was last logged, and how often it was not since

    def report(self, error: OncewardError) -> None:
        """Log the cause, unless that was done a moment ago."""
        cause = without_secrets(f"{type(error).__name__}: {error}")[:_CHARACTERS_MAX]
        suppressed = self._due(_NUMBERS.sub("#", cause))
        if suppressed is None:
            return
        event = "store_unavailable" if error.retryable else "store_misconfigured"
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        fields = {"cause": cause, "code": error.code, "retryable": error.retryable, "suppressed": suppressed}
        logger.warning("%s: %s%s", event, cause, more, extra=fields)

    def _due(self, cause: str) -> int | None:
        """How many were left out since the last line; None where it is too early for the next."""
        now = self._clock()
        with self._lock:
            logged_at, suppressed = self._causes.pop(cause, (-QUIET_SECONDS, 0))
            if now - logged_at < QUIET_SECONDS:
                self._causes[cause] = (logged_at, suppressed + 1)
                return None
            while len(self._causes) >= CAUSES_MAX:
                del self._causes[next(iter(self._causes))]
            self._causes[cause] = (now, 0)
            return suppressed


def without_secrets(text: str) -> str:
    """The text with `***` where a URL has a password, or a name such as `password=` a value."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))


report = FailureLog().report
