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

# No date is as long; a longer text is not read.
_LENGTH_MAX = 256
# Texts of times are compared as text, so a year has four digits.
_YEAR_MIN = 1000
# From the first second of 1000 to the last of 9999.
_SECONDS = range(-30_610_224_000, 253_402_300_800)
# RFC 5322: programs that counted years from 1900 wrote three digits from 2000 on.
_COUNTED_FROM = 1900
_COUNTED_MIN = 100

# From nine digits on, digits alone are seconds (Telegram's exports write them so); eight are a day.
_SECONDS_TEXT = re.compile(r"-?[0-9]{9,12}")
_DAY = r"[0-9]{4}-?(?:[0-9]{2}-?[0-9]{2}|W[0-9]{2}(?:-?[0-9])?)"
_ISO_DAY = re.compile(_DAY)
_ISO = re.compile(rf"(?P<time>{_DAY}[T ][0-9:.,]+)\ ?(?P<zone>[+-][0-9:]+|Z|UTC|GMT)?")
_MAIL_DAY = re.compile(r"(?:[A-Z]+,? ?)?[0-9]{1,2} [A-Z]{3,9} [0-9]{2,4}")
_UTC = frozenset({None, "UTC", "GMT"})
_COMMENT = re.compile(r"\([^()]*\)")


def moment(sent: str | int | None) -> datetime.datetime | None:
    """The moment in UTC that is meant by an RFC 5322 or ISO 8601 text or by Unix seconds; None if it cannot be read.

    No zone, and the zone `-0000`, mean UTC. A day without a time means its beginning in UTC. Never raises.
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
    """The day in America/Chicago, as `2026-02-17`; a text that is only a day is that day. None if it cannot be read."""
    found = moment(sent)
    if found is None:
        return None
    if isinstance(sent, str) and _is_day(_plain(sent)):
        return found.date().isoformat()
    return found.astimezone(_zone()).date().isoformat()


def source_time(sent: str | int | None) -> str | None:
    """The moment as every row has it: text whose order is the order in time. None if it cannot be read."""
    found = moment(sent)
    return None if found is None else time_text(found)


def _plain(sent: object) -> str:
    """The text in capitals, without comments and with single blanks; empty for what is no text or too long for a date."""
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
    except (IndexError, TypeError):  # What the library has let through for texts that are no dates.
        return None
    if read is None:
        return None
    year, month, day, hour, minute, second = read[:6]
    year = year + _COUNTED_FROM if _COUNTED_MIN <= year < _YEAR_MIN else year
    zone = datetime.timezone(datetime.timedelta(seconds=read[9] or 0))
    # A leap second has no place in a datetime: it is taken for the one before.
    return datetime.datetime(year, month, day, hour, minute, 59 if second == 60 else second, tzinfo=zone)  # noqa: PLR2004


@functools.cache
def _zone() -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(ZONE)
