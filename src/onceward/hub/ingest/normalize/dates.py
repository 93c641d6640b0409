"""Dates of messages: parsed to a time in UTC, to a day for the newsletter policy, and to a sortable version text."""

from __future__ import annotations

import datetime
import email.utils
import functools
import re
import zoneinfo

from onceward.hub.db.timestamps import time_text

# The newsletter policy counts days in this time zone, wherever the reader and the server are.
ZONE = "America/Chicago"

# Longer than any date; longer strings are not parsed.
_LENGTH_MAX = 256
# Times are compared as text, so a year must have four digits.
_YEAR_MIN = 1000
# From the first second of the year 1000 to the last of 9999.
_SECONDS = range(-30_610_224_000, 253_402_300_800)
# RFC 5322: programs that count years from 1900 have written three digits since 2000.
_COUNTED_FROM = 1900
_COUNTED_MIN = 100

# Nine digits or more are Unix seconds, as in Telegram's exports; eight are a date.
_SECONDS_TEXT = re.compile(r"-?[0-9]{9,12}")
_DAY = r"[0-9]{4}-?(?:[0-9]{2}-?[0-9]{2}|W[0-9]{2}(?:-?[0-9])?)"
_ISO_DAY = re.compile(_DAY)
_ISO = re.compile(rf"(?P<time>{_DAY}[T ][0-9:.,]+)\ ?(?P<zone>[+-][0-9:]+|Z|UTC|GMT)?")
_MAIL_DAY = re.compile(r"(?:[A-Z]+,? ?)?[0-9]{1,2} [A-Z]{3,9} [0-9]{2,4}")
_UTC = frozenset({None, "UTC", "GMT"})
_COMMENT = re.compile(r"\([^()]*\)")


def parse_time(sent: str | int | None) -> datetime.datetime | None:
    """Parse an RFC 5322 date, an ISO 8601 text or Unix seconds to a time in UTC; None if it cannot be parsed.

    A missing zone and the zone `-0000` mean UTC. A date without a time means the start of that day in UTC. This never
    raises.
    """
    if isinstance(sent, bool):
        return None
    if isinstance(sent, int):
        return _of_seconds(sent)
    text = _plain(sent)
    if _SECONDS_TEXT.fullmatch(text):
        return _of_seconds(int(text))
    try:
        read = _of_text(text)
        found = None if read is None else read.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return found if found is not None and found.year >= _YEAR_MIN else None


def date_bucket(sent: str | int | None) -> str | None:
    """Return the day in America/Chicago, such as `2026-02-17`; None if it cannot be parsed.

    A date without a time is returned as it is.
    """
    found = parse_time(sent)
    if found is None:
        return None
    if isinstance(sent, str) and _is_day(_plain(sent)):
        return found.date().isoformat()
    return found.astimezone(_zone()).date().isoformat()


def source_time(sent: str | int | None) -> str | None:
    """Return the time in the form of stored rows, text that sorts by time; None if it cannot be parsed."""
    found = parse_time(sent)
    return None if found is None else time_text(found)


def _plain(sent: object) -> str:
    """Return the text in capitals, with single spaces and no comments; empty if not a string or too long."""
    if not isinstance(sent, str) or len(sent) > _LENGTH_MAX:
        return ""
    return " ".join(_COMMENT.sub(" ", sent).upper().split())


def _is_day(text: str) -> bool:
    return bool(_ISO_DAY.fullmatch(text) or _MAIL_DAY.fullmatch(text))


def _of_seconds(seconds: int) -> datetime.datetime | None:
    if seconds not in _SECONDS:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _of_text(text: str) -> datetime.datetime | None:
    if _ISO_DAY.fullmatch(text):
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    if (iso := _ISO.fullmatch(text)) is None:
        return _of_mail(f"{text} 00:00:00" if _MAIL_DAY.fullmatch(text) else text)
    if iso["zone"] in _UTC:
        return datetime.datetime.fromisoformat(iso["time"]).replace(tzinfo=datetime.UTC)
    return datetime.datetime.fromisoformat(iso["time"] + iso["zone"])


def _of_mail(text: str) -> datetime.datetime | None:
    try:
        read = email.utils.parsedate_tz(text)
    except (IndexError, TypeError):  # the library raises these for some invalid dates
        return None
    if read is None:
        return None
    year, month, day, hour, minute, second = read[:6]
    year = year + _COUNTED_FROM if _COUNTED_MIN <= year < _YEAR_MIN else year
    zone = datetime.timezone(datetime.timedelta(seconds=read[9] or 0))
    # A datetime has no leap seconds; the second before is used.
    return datetime.datetime(year, month, day, hour, minute, 59 if second == 60 else second, tzinfo=zone)  # noqa: PLR2004


@functools.cache
def _zone() -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(ZONE)
