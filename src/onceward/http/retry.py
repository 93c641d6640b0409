"""When a request is sent again, and after which pause. Values in, values out: no clock, no randomness, no socket.

What may be sent again: a request of one of the `methods`, because it carries a key, and a safe one (GET, HEAD, OPTIONS,
TRACE), because it changes nothing. Everything else, DELETE among it, is sent once: without a key its second answer is
not the first one.

What is worth another try:

    no answer, or half of one      yes
    425, 429                       yes
    5xx                            yes
    409                            only with `Retry-After`: the first request still runs. Without it the answer is final
                                   (in doubt, outcome not kept, or a conflict of the application)
    everything else                no: it is the answer
    replayed, whatever it is       no: the server has it on record (`Idempotent-Replayed: true`) and will not change it
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypedDict

from onceward.errors import InvalidOption
from onceward.terms import check_seconds

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
# Three leases of the middleware: time to wait for one, and to run twice.
DEADLINE_SECONDS = 90.0
# Longer than this is not a call any more but a job: keep its intent instead.
DEADLINE_SECONDS_MAX = 24 * 3600.0
# What is read of an answer before it is handed on. Most answers to mutating requests are far smaller.
WHOLE_BYTES_MAX = 1024 * 1024

_CONFLICT = 409
_TOO_EARLY, _TOO_MANY = 425, 429
_DELTA = re.compile(r"[0-9]+(\.[0-9]+)?")
# Where doubling the pause ends, whatever the longest pause: far above every deadline.
_DOUBLINGS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long, how often and for which requests.

    methods                the methods that get a key and are retried with it
    deadline_seconds       from the first byte sent: after it nothing is tried and nothing is waited for; longer than the
                           server's lease (30), so that a retry outlives a server that died in another container
    tries                  at most, the first one included
    first_pause_seconds    the longest pause before the second try; doubled with every further one
    longest_pause_seconds  where the doubling ends
    max_body_bytes         what is kept in memory of a streamed request body, to send it again; a longer one is sent once
    """

    methods: Collection[str] = ("POST", "PUT", "PATCH")
    deadline_seconds: float = DEADLINE_SECONDS
    tries: int = 30
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 5.0
    # What the server takes of a keyed request by default: a longer one would be answered with 413.
    max_body_bytes: int = 10 * 1024 * 1024

    def __post_init__(self) -> None:
        if isinstance(self.methods, str) or not all(isinstance(name, str) and name for name in self.methods):
            raise InvalidOption(f"methods= is a collection of names like ('POST',), not {self.methods!r}")
        object.__setattr__(self, "methods", frozenset(name.upper() for name in self.methods))
        check_seconds("deadline_seconds", self.deadline_seconds, DEADLINE_SECONDS_MAX, positive=True)
        check_seconds("first_pause_seconds", self.first_pause_seconds, DEADLINE_SECONDS_MAX)
        check_seconds("longest_pause_seconds", self.longest_pause_seconds, DEADLINE_SECONDS_MAX)
        _check_count("tries", self.tries, 1)
        _check_count("max_body_bytes", self.max_body_bytes, 0)

    def pause(self, tries: int, asked: float, left: float, jitter: float) -> float | None:
        """How long to wait after so many tries, or None to give up: a try after the deadline would be in vain.

        Never shorter than the server asked for. What is added is drawn (`jitter`, from 0 to 1) from a span that doubles
        with each try, so that clients that failed together do not come back together.
        """
        if tries >= self.tries:
            return None
        span = min(self.longest_pause_seconds, self.first_pause_seconds * 2 ** min(tries - 1, _DOUBLINGS_MAX))
        pause = asked + jitter * span
        if asked and pause >= left:
            pause = asked  # The server's own moment may still be in time.
        return pause if pause < left else None


class PatienceOptions(TypedDict, total=False):
    """The options of the transports, as `Patience` explains them."""

    methods: Collection[str]
    deadline_seconds: float
    tries: int
    first_pause_seconds: float
    longest_pause_seconds: float
    max_body_bytes: int


def worth_another_try(status: int, asked: float | None, replayed: str | None) -> bool:
    """Whether this answer may turn out differently next time. `asked` is what `Retry-After` says, if it is there;
    `replayed` is the header of an answer from the record.
    """
    if (replayed or "").strip().lower() == "true":
        return False
    if status == _CONFLICT:
        return asked is not None
    if status in {_TOO_EARLY, _TOO_MANY}:
        return True
    return status // 100 == 5  # noqa: PLR2004  # a server error


def asked_seconds(retry_after: str | None, date: str | None, now: datetime) -> float | None:
    """The seconds that a `Retry-After` asks for; None when it is missing or says nothing.

    A moment is counted from the answer's own `Date`, so that two clocks need not agree; without one, from `now`.
    """
    if retry_after is None:
        return None
    if _DELTA.fullmatch(retry_after.strip()):
        return float(retry_after)
    moment = _moment(retry_after)
    if moment is None:
        return None
    return max(0.0, (moment - (_moment(date or "") or now)).total_seconds())


def read_whole(content_length: str | None, content_type: str | None) -> bool:
    """Whether an answer's body is read before the answer is handed on, so that one that breaks off can be retried.

    Only where that holds nobody up: a short body, or JSON, which is of no use before its end. A stream of events must
    reach its reader as it comes.
    """
    if content_length is not None:
        return content_length.isdecimal() and int(content_length) <= WHOLE_BYTES_MAX
    media_type = (content_type or "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _moment(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError, IndexError):  # what the standard library makes of nonsense
        return None


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(f"{name} is a whole number, {least} or more, not {value!r}")
