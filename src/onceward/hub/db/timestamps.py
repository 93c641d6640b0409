"""Timestamps and ids of rows, as text that sorts by time."""

from __future__ import annotations

import datetime
import secrets
import threading
import time

# Crockford's alphabet: in ASCII order, and without letters that look like digits.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
# Microseconds since 1970 in base 32: eleven characters are enough until after the year 3000.
_TIME_LENGTH = 11
# 50 random bits beside the microsecond, so that processes with the same database do not create equal ids.
_RANDOM_LENGTH = 10

# Two random bits taken from a hexadecimal digit: as a number, and as a digit that starts with RFC 9562's variant bits.
_TWO_BITS = {digit: int(digit, 16) & 3 for digit in "0123456789abcdef"}
_VARIANTS = {digit: "89ab"[bits] for digit, bits in _TWO_BITS.items()}

_lock = threading.Lock()
_latest = 0


def now_text() -> str:
    """Return the current time in UTC with a fixed-width fraction, as in `2026-11-16T03:26:00.123456Z`."""
    return _text(datetime.datetime.now(datetime.UTC))


def time_text(moment: datetime.datetime) -> str:
    return _text(moment.astimezone(datetime.UTC))


def _text(moment: datetime.datetime) -> str:
    """Format a UTC time, replacing `+00:00` by `Z`; `strftime` would take three times as long."""
    return moment.isoformat(timespec="microseconds")[:-6] + "Z"


def new_id(prefix: str) -> str:
    """Return a unique id such as `att_01k…`. Within a process, later ids sort after earlier ones."""
    return f"{prefix}_{_base32(_next_microsecond(), _TIME_LENGTH)}{_base32(secrets.randbits(50), _RANDOM_LENGTH)}"


def new_uuids(count: int) -> list[str]:
    """Return UUIDs of version 7 (RFC 9562): milliseconds, microseconds, random bits. They sort like those of `new_id`."""
    first = _next_microsecond(count)
    random = secrets.token_bytes(9 * count).hex()
    made = []
    for number, at in zip(range(first, first + count), range(0, 18 * count, 18), strict=True):
        milliseconds, microseconds = divmod(number, 1000)
        time_part = f"{milliseconds:012x}"
        # Ten bits of microseconds and two random ones follow the version; 62 random bits follow the variant.
        fraction = microseconds << 2 | _TWO_BITS[random[at]]
        variant = _VARIANTS[random[at + 1]]
        made.append(
            f"{time_part[:8]}-{time_part[8:]}-7{fraction:03x}-{variant}{random[at + 2 : at + 5]}-{random[at + 5 : at + 17]}"
        )
    return made


def _next_microsecond(count: int = 1) -> int:
    """Reserve `count` microseconds that no other call of this process gets, and return the first."""
    global _latest  # noqa: PLW0603  # the only place that stores it
    with _lock:
        first = max(_latest + 1, time.time_ns() // 1000)
        _latest = first + count - 1
        return first


def _base32(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * (length - 1), -1, -5))
