"""Times and ids of rows. Both are text whose order is the order in time."""

from __future__ import annotations

import datetime
import secrets
import threading
import time

# Crockford's alphabet: in ASCII order, and without letters that are taken for digits.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
# Microseconds since 1970 in base 32: eleven characters last beyond the year 3000.
_TIME_LENGTH = 11
# 50 random bits beside the microsecond: processes that share a database do not meet.
_RANDOM_LENGTH = 10

_lock = threading.Lock()
_latest = 0


def now_text() -> str:
    """The time in UTC with a fixed-width fraction, as in `2026-11-16T03:26:00.123456Z`."""
    return time_text(datetime.datetime.now(datetime.UTC))


def time_text(moment: datetime.datetime) -> str:
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_id(prefix: str) -> str:
    """An id such as `att_01k…`, never the same twice. Later ids of one process sort behind earlier ones."""
    return f"{prefix}_{_base32(_next_microsecond(), _TIME_LENGTH)}{_base32(secrets.randbits(50), _RANDOM_LENGTH)}"


def new_uuids(count: int) -> list[str]:
    """UUIDs of version 7 (RFC 9562): milliseconds, microseconds, random bits. They sort as `new_id` does."""
    first = _next_microsecond(count)
    random = secrets.token_bytes(9 * count).hex()
    made = []
    for number in range(count):
        milliseconds, microseconds = divmod(first + number, 1000)
        time_part, tail = f"{milliseconds:012x}", random[18 * number : 18 * number + 17]
        # Ten bits of microseconds and two random ones follow the version; 62 random bits follow the variant.
        middle = microseconds << 2 | int(tail[0], 16) & 3
        variant = "89ab"[int(tail[1], 16) & 3]
        made.append(f"{time_part[:8]}-{time_part[8:]}-7{middle:03x}-{variant}{tail[2:5]}-{tail[5:]}")
    return made


def _next_microsecond(count: int = 1) -> int:
    """The first of so many that nobody else of this process gets."""
    global _latest  # noqa: PLW0603  # the one place that remembers
    with _lock:
        first = max(_latest + 1, time.time_ns() // 1000)
        _latest = first + count - 1
        return first


def _base32(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * (length - 1), -1, -5))
