"""When a message was written: as a moment, as a day of the newsletter policy, and as the version of its content."""

from __future__ import annotations

import datetime
import email.utils
import functools
import re
import zoneinfo

from onceward.db.clock import time_text

# A day of the newsletter policy is a day here, wherever the reader and the server are.
ZONE = "America/Chicago"

# No date is as long; a longer text is refused unread.
_LENGTH_MAX = 256
# Texts of times are compared as text: a year has four digits.
_YEAR_MIN = 1000
# 1000-01-01 and 9999-12-31, in seconds of 1970.
_SECONDS = range(-30_610_224_000, 253_402_300_800)

_DAY_ISO = re.compile(r"(?P<year>[0-9]{4})(?P<dash>-?)(?P<month>[0-9]{2})(?P=dash)(?P<day>[0-9]{2})")
_DAY_MAIL = re.compile(r"(?:[A-Za-z]+,?\s*)?[0-9]{1,2}\s+[A-Za-z]{3,9}\s+[0-9]{2,4}")
# From nine digits on, digits alone are seconds (Telegram's exports write them so); eight are a day.
_SECONDS_TEXT = re.compile(r"-?[0-9]{9,12}")
_ISO = re.compile(r"[0-9]{4}-?(?:[0-9]{2}-?[0-9]{2}|W[0-9])", re.IGNORECASE)
_COMMENT = re.compile(r"\([^()]*\)")
_CENTURY = 1900


def moment(sent: str | int | None) -> datetime.datetime | None:
    """The moment in UTC that is meant by an RFC 5322 or ISO 8601 text or by Unix seconds; None if it cannot be read.

    No zone, and the zone `-0000`, mean UTC. A day without a time means its beginning in UTC. Never raises.
    """
    if sent is None or isinstance(sent, bool):
        return None
    if isinstance(sent, int):
        return _of_seconds(sent)
    text = _trimmed(sent)
    if _SECONDS_TEXT.fullmatch(text):
        return _of_seconds(int(text))
    try:
        read = datetime.datetime.fromisoformat(text.upper()) if _ISO.match(text) else _of_mail(text)
        if read is None or read.year < _YEAR_MIN:
            return None
        return read.replace(tzinfo=datetime.UTC) if read.tzinfo is None else read.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def date_bucket(sent: str | int | None) -> str | None:
    """The day in America/Chicago, as `2026-02-17`; a text that is only a day is that day. None if it cannot be read."""
    found = moment(sent)
    if found is None:
        return None
    if isinstance(sent, str) and _is_day(_trimmed(sent)):
        return found.date().isoformat()
    return found.astimezone(_zone()).date().isoformat()


def source_time(sent: str | int | None) -> str | None:
    """The moment as text whose order is the order in time, as every row has it."""
    found = moment(sent)
    return None if found is None else time_text(found)


def _trimmed(sent: str) -> str:
    return " ".join(_COMMENT.sub(" ", sent).split()) if len(sent) <= _LENGTH_MAX else ""


def _is_day(text: str) -> bool:
    return bool(_DAY_ISO.fullmatch(text) or _DAY_MAIL.fullmatch(text))


def _of_seconds(seconds: int) -> datetime.datetime | None:
    if seconds not in _SECONDS:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _of_mail(text: str) -> datetime.datetime | None:
    try:
        read = email.utils.parsedate_tz(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    if read is None:
        return None
    year, month, day, hour, minute, second = read[:6]
    # RFC 5322: programs that counted years from 1900 wrote three digits from 2000 on.
    year = year + _CENTURY if 100 <= year < _YEAR_MIN else year
    # A leap second has no place in a datetime; it is the last second of its minute.
    zone = datetime.timezone(datetime.timedelta(seconds=read[9] or 0))
    return datetime.datetime(year, month, day, hour, minute, min(second, 59), tzinfo=zone)


@functools.cache
def _zone() -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(ZONE)
