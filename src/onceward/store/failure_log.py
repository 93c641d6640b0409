"""Log of store failures: one warning for each cause, not one for each request.

Clients get a message without details. Operators need the message of the driver, once every few seconds while the
failure lasts, and never a password.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from onceward.core.log_event import log_event
from onceward.errors import OncewardError

# At most one line for each cause in this time. The next line has the number of suppressed ones.
QUIET_SECONDS = 10.0
# There are few different causes. If there are more, they are one cause with changing details: the oldest are dropped.
CAUSES_MAX = 64
_CHARACTERS_MAX = 500

# Secrets in a URL or connection string that a driver may quote.
_IN_URL = re.compile(r"(://[^\s/:@]{0,200}):[^\s@]{1,300}@")
_NAMED = re.compile(
    r"((?:password|passwd|secret|token|signature|credential)s?[\"']?\s{0,3}[=:]\s{0,3})[^\s&,;]{1,300}", re.IGNORECASE
)
# Ids, counts and addresses differ between failures with the same cause.
_NUMBERS = re.compile(r"[0-9a-f]{8,200}|[0-9]{1,200}")

logger = logging.getLogger("onceward.store")


class FailureLog:
    """Rate-limited log of failures. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[str, tuple[float, int]] = {}  # time of the last line, and number suppressed since

    def report(self, error: OncewardError) -> None:
        """Log the cause, unless the same cause was logged less than `QUIET_SECONDS` ago."""
        cause = without_secrets(f"{type(error).__name__}: {error}")[:_CHARACTERS_MAX]
        suppressed = self._due(_NUMBERS.sub("#", cause))
        if suppressed is None:
            return
        event = "store_unavailable" if error.retryable else "store_misconfigured"
        log_event(logger.warning, event, cause=cause, code=error.code, retryable=error.retryable, suppressed=suppressed)

    def _due(self, cause: str) -> int | None:
        """Return the number suppressed since the last line, or None if it is too early for another line."""
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
    """Replace passwords in URLs, and the values of names such as `password=`, by `***`."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))


report = FailureLog().report
