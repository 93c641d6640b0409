"""Retry policy: which requests are sent again, and after which pause. Pure: no clock, no randomness, no socket.

Two kinds of requests may be sent again: those with one of the `methods`, because they carry a key, and safe ones (GET,
HEAD, OPTIONS, TRACE), because they change nothing. All others, such as DELETE, are sent once: without a key the second
response may differ from the first.

Results that are retried:

    no response, or an incomplete one    yes
    425, 429                             yes
    5xx                                  yes
    409                                  only with `Retry-After`: the first request still runs. Without it the response
                                         is final (in doubt, outcome not kept, or a conflict of the application). A
                                         profile also reads the code (`profile.py`)
    every other status                   no
    any status, replayed                 no: the server has recorded the response (`Idempotent-Replayed: true`)
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypedDict

from onceward.errors import InvalidOption
from onceward.http.client.profile import PLAIN, ClientProfile, client_profile, still_runs
from onceward.http.request.headers import length_of
from onceward.ledger.terms import check_seconds

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# Three leases of the middleware: time to wait for one lease, and to run twice.
DEADLINE_SECONDS = 90.0
# For work that takes longer than this, use an intent.
DEADLINE_SECONDS_MAX = 24 * 3600.0
# The largest response that is read completely before it is returned. Most responses to mutating requests are smaller.
WHOLE_BYTES_MAX = 1024 * 1024

CONFLICT = 409
_TOO_EARLY, _TOO_MANY = 425, 429
_DELTA = re.compile(r"[0-9]+(\.[0-9]+)?")
# Limits the exponent of the pause. The pause is then far above every deadline.
_DOUBLINGS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The options of the transports: which requests are retried, how often and for how long.

    Args:
        methods: The methods whose requests get a key and are retried with it.
        deadline_seconds: The time for all tries of a request, from the start of the first. Afterwards nothing is tried
            or waited for. It should be longer than the server's lease (30), so that a retry succeeds after a server
            in another container died.
        tries: The maximum number of tries, including the first.
        first_pause_seconds: The longest pause before the second try. It doubles with every further try.
        longest_pause_seconds: The limit of that doubling.
        max_body_bytes: How much of a streamed request body is held in memory to send it again. A longer body is sent
            once.
        profile: The standard that the server follows: "ietf", "acp", "ucp" or "stripe". It decides which 409 is sent
            again, whether the echo of the key is checked, and whether a GET comes before a retry.

    Raises:
        InvalidOption: A value is wrong.
    """

    methods: Collection[str] = ("POST", "PUT", "PATCH")
    deadline_seconds: float = DEADLINE_SECONDS
    tries: int = 30
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 5.0
    # The server's default limit for a keyed request. It refuses a longer body with 413.
    max_body_bytes: int = 10 * 1024 * 1024
    profile: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.methods, str) or not all(isinstance(name, str) and name for name in self.methods):
            raise InvalidOption(f"methods= must be a collection of names, such as ('POST',), got {self.methods!r}")
        object.__setattr__(self, "methods", frozenset(name.upper() for name in self.methods))
        check_seconds("deadline_seconds", self.deadline_seconds, DEADLINE_SECONDS_MAX, positive=True)
        check_seconds("first_pause_seconds", self.first_pause_seconds, DEADLINE_SECONDS_MAX)
        check_seconds("longest_pause_seconds", self.longest_pause_seconds, DEADLINE_SECONDS_MAX)
        _check_count("tries", self.tries, 1)
        _check_count("max_body_bytes", self.max_body_bytes, 0)
        client_profile(self.profile)

    def pause(self, tries: int, retry_after: float, left: float, jitter: float) -> float | None:
        """Return the pause in seconds after this number of tries; None if the tries or the time `left` are used up.

        The pause is never shorter than `retry_after`. A random part is added (`jitter`, from 0 to 1) from a span that
        doubles with each try, so that clients that failed together do not retry together.
        """
        if tries >= self.tries:
            return None
        span = min(self.longest_pause_seconds, self.first_pause_seconds * 2 ** min(tries - 1, _DOUBLINGS_MAX))
        pause = retry_after + jitter * span
        if retry_after and pause >= left:
            pause = retry_after  # Without the random part it may still be in time.
        return pause if pause < left else None


class RetryOptions(TypedDict, total=False):
    """The options of the transports; see `RetryPolicy`."""

    methods: Collection[str]
    deadline_seconds: float
    tries: int
    first_pause_seconds: float
    longest_pause_seconds: float
    max_body_bytes: int
    profile: str | None


def worth_another_try(
    status: int,
    retry_after: float | None,
    replayed: str | None,
    profile: ClientProfile = PLAIN,
    code: str = "",
    should_retry: str = "",
) -> bool:
    """Return whether a retry may get another response.

    `retry_after` is the `Retry-After` in seconds, `replayed` the header `Idempotent-Replayed`; None if missing. For the
    others, see `still_runs`.
    """
    if (replayed or "").strip().lower() == "true":
        return False
    if status == CONFLICT:
        return still_runs(profile, code, retry_after, should_retry)
    if status in {_TOO_EARLY, _TOO_MANY}:
        return True
    return status // 100 == 5  # noqa: PLR2004  # a server error


def retry_after_seconds(retry_after: str | None, date: str | None, now: datetime) -> float | None:
    """Return the seconds of a `Retry-After`; None if it is missing or invalid.

    An HTTP date counts from the response's `Date`, so that two clocks need not agree; without one, from `now`.
    """
    if retry_after is None:
        return None
    retry_after = retry_after.strip()
    if _DELTA.fullmatch(retry_after):
        return float(retry_after)
    retry_at = _parse_date(retry_after)
    if retry_at is None:
        return None
    return max(0.0, (retry_at - (_parse_date(date or "") or now)).total_seconds())


def read_whole(content_length: str | None, content_type: str | None) -> bool:
    """Return whether to read the body before the response is returned, so that an incomplete one can be retried.

    Only a short body is read, or JSON, which is of no use before it is complete. An event stream must reach its reader
    as it arrives.
    """
    if content_length is not None:
        length = length_of(content_length)
        return length is not None and length <= WHOLE_BYTES_MAX
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _parse_date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError, IndexError):  # the standard library raises all of these
        return None


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name} must be a whole number, {least} or more, got {value!r}")


# To a socket, a timeout of 0 means "do not wait at all", not "the time is over".
TIMEOUT_SECONDS_MIN = 0.001


class Timeouts(Mapping[str, float | None]):
    """The caller's timeouts, each limited to the time left until `end` when it is read.

    A fixed copy would not be enough: connecting, writing and reading could each take all of the time. If `end` is
    infinity, the caller's timeouts are unchanged, for a response whose body the caller reads.
    """

    def __init__(self, own: Mapping[str, float | None], clock: Callable[[], float], end: float) -> None:
        self._own = {"connect": None, "read": None, "write": None, "pool": None, **own}
        self._clock = clock
        self.end = end

    def __getitem__(self, name: str) -> float | None:
        own = self._own[name]
        if math.isinf(self.end):
            return own
        left = max(TIMEOUT_SECONDS_MIN, self.end - self._clock())
        return left if own is None else min(own, left)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def over(self) -> bool:
        """Return whether the time is over. A timeout bounds one wait for data; this bounds a slow trickle of data."""
        return self._clock() >= self.end
