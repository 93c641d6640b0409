"""Times and days in any spelling; none of them raises an exception."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.hub.db.timestamps import time_text
from onceward.hub.ingest.normalize.dates import date_bucket, parse_time, source_time

# The input, the time, and the day in Chicago.
READ: dict[str, tuple[str | int, str, str]] = {
    "mail": ("Tue, 17 Feb 2026 10:00:00 -0600", "2026-02-17T16:00:00", "2026-02-17"),
    "mail with a comment": ("Tue, 17 Feb 2026 10:00:00 -0600 (Central (US) Time)", "2026-02-17T16:00:00", "2026-02-17"),
    "mail with comments anywhere": ("(a) Tue, 17 (b) Feb 2026 10:00:00 (c) -0600", "2026-02-17T16:00:00", "2026-02-17"),
    "mail, the day before in Chicago": ("Tue, 17 Feb 2026 03:00:00 +0000", "2026-02-17T03:00:00", "2026-02-16"),
    "mail, the day after in Chicago": ("Tue, 17 Feb 2026 23:00:00 -1200", "2026-02-18T11:00:00", "2026-02-18"),
    "mail that hides its zone": ("Tue, 17 Feb 2026 03:00:00 -0000", "2026-02-17T03:00:00", "2026-02-16"),
    "mail without a zone": ("Tue, 17 Feb 2026 03:00:00", "2026-02-17T03:00:00", "2026-02-16"),
    "mail without seconds": ("17 Feb 2026 03:00 +0000", "2026-02-17T03:00:00", "2026-02-16"),
    "mail in a zone with a name": ("Tue, 17 Feb 2026 00:30:00 EST", "2026-02-17T05:30:00", "2026-02-16"),
    "mail in a zone that nobody knows": ("Tue, 17 Feb 2026 03:00:00 XYZ", "2026-02-17T03:00:00", "2026-02-16"),
    "mail with a year of two digits": ("Tue, 17 Feb 26 12:00:00 GMT", "2026-02-17T12:00:00", "2026-02-17"),
    "mail with a year counted from 1900": ("Tue, 17 Feb 126 12:00:00 GMT", "2026-02-17T12:00:00", "2026-02-17"),
    "mail at a leap second": ("Tue, 30 Jun 2015 23:59:60 +0000", "2015-06-30T23:59:59", "2015-06-30"),
    "folded mail": (" Tue,\r\n 17 Feb 2026\t12:00:00 +0000\r\n", "2026-02-17T12:00:00", "2026-02-17"),
    "the form of C": ("Tue Feb 17 12:00:00 2026", "2026-02-17T12:00:00", "2026-02-17"),
    "mail, only a day": ("Tue, 17 Feb 2026", "2026-02-17T00:00:00", "2026-02-17"),
    "only a day": ("2026-02-17", "2026-02-17T00:00:00", "2026-02-17"),
    "only a day, short": ("20260217", "2026-02-17T00:00:00", "2026-02-17"),
    "only a day of a week": ("2026-W08-2", "2026-02-17T00:00:00", "2026-02-17"),
    "only a day with blanks": (" 2026-02-17\n", "2026-02-17T00:00:00", "2026-02-17"),
    "ISO in UTC": ("2026-02-17T03:00:00Z", "2026-02-17T03:00:00", "2026-02-16"),
    "ISO in small letters": ("2026-02-17t03:00:00z", "2026-02-17T03:00:00", "2026-02-16"),
    "ISO with a zone": ("2026-02-17T03:00:00+09:00", "2026-02-16T18:00:00", "2026-02-16"),
    "ISO without a zone": ("2026-02-17T03:00:00", "2026-02-17T03:00:00", "2026-02-16"),
    "ISO that hides its zone": ("2026-02-17T03:00:00-00:00", "2026-02-17T03:00:00", "2026-02-16"),
    "ISO with blanks": ("2026-02-17 03:00:00 +0900", "2026-02-16T18:00:00", "2026-02-16"),
    "ISO with a zone's name": ("2026-02-17 03:00:00 UTC", "2026-02-17T03:00:00", "2026-02-16"),
    "ISO, short": ("20260217T030000Z", "2026-02-17T03:00:00", "2026-02-16"),
    "ISO with a fraction": ("2026-02-17T03:00:00.1234567Z", "2026-02-17T03:00:00.123456", "2026-02-16"),
    "seconds": (1_771_300_000, "2026-02-17T03:46:40", "2026-02-16"),
    "seconds as text": ("1771300000", "2026-02-17T03:46:40", "2026-02-16"),
    "the first second": (0, "1970-01-01T00:00:00", "1969-12-31"),
    "before the first second": (-1, "1969-12-31T23:59:59", "1969-12-31"),
    "the first second that can be read": (-30_610_224_000, "1000-01-01T00:00:00", "0999-12-31"),
    "the last second that can be read": (253_402_300_799, "9999-12-31T23:59:59", "9999-12-31"),
}

UNREADABLE: dict[str, Any] = {
    "nothing": None,
    "empty": "",
    "blank": " \n",
    "words": "yesterday",
    "a truth value": True,
    "a fraction": 1_771_300_000.5,
    "a list": ["2026-02-17"],
    "milliseconds": 1_771_300_000_000,
    "a second too early": -30_610_224_001,
    "a second too late": 253_402_300_800,
    "a huge number": 10**400,
    "a huge negative number": -(10**400),
    "a huge number as text": "9" * 200,
    "few digits": "86400",
    "no such day": "2026-02-30",
    "no such day in a mail": "Tue, 30 Feb 2026 10:00:00 +0000",
    "no such hour": "2026-02-17T25:00:00Z",
    "no such second": "Tue, 17 Feb 2026 10:00:61 +0000",
    "no such zone": "2026-02-17T10:00:00+99:99",
    "no such zone in a mail": "Tue, 17 Feb 2026 10:00:00 +9999",
    "a day with a zone": "2026-02-17+02:00",
    "a year of three digits": "0999-12-31T23:59:59Z",
    "a year of three digits, in UTC": "1000-01-01T00:00:00+05:00",
    "before all years": "0001-01-01T00:00:00+05:00",
    "behind all years": "9999-12-31T23:59:59-05:00",
    "half a character": "\ud800",
    "digits of another kind": "\u0662\u0660\u0662\u0666-02-17",
    "a raised digit": "17 Feb 2026 10:00:0\u00b2",
    "NUL": "2026-02-17\0",
    "ten megabytes": "Tue, 17 Feb 2026 10:00:00 +0000" + " " * 10_000_000,
    "ten megabytes of brackets": "(" * 10_000_000,
}

# The clocks of Chicago went forward on 8 March 2026 and back on 1 November 2026, both at two in the morning.
BORDERS = {
    "last second of a winter day": ("2026-03-08T05:59:59Z", "2026-03-07"),
    "first second of the short day": ("2026-03-08T06:00:00Z", "2026-03-08"),
    "last second of the short day": ("2026-03-09T04:59:59Z", "2026-03-08"),
    "first second behind the short day": ("2026-03-09T05:00:00Z", "2026-03-09"),
    "last second of a summer day": ("2026-11-01T04:59:59Z", "2026-10-31"),
    "first second of the long day": ("2026-11-01T05:00:00Z", "2026-11-01"),
    "last second of the long day": ("2026-11-02T05:59:59Z", "2026-11-01"),
    "first second behind the long day": ("2026-11-02T06:00:00Z", "2026-11-02"),
}

aware = st.datetimes(
    min_value=datetime.datetime(1000, 1, 2),  # noqa: DTZ001  # the zone comes beside it
    max_value=datetime.datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.integers(-23 * 60, 23 * 60).map(
        lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes))
    ),
)
DATE_LIKE = "0123456789 -+:.,TZWzt/()JanFebTueMonGMT\u0660\u00b2\ud800"


@pytest.mark.parametrize(("sent", "utc", "day"), READ.values(), ids=READ)
def test_these_dates_are_parsed(sent: str | int, utc: str, day: str) -> None:
    expected = datetime.datetime.fromisoformat(utc).replace(tzinfo=datetime.UTC)

    assert parse_time(sent) == expected
    assert date_bucket(sent) == day
    assert source_time(sent) == time_text(expected)


@pytest.mark.parametrize("sent", UNREADABLE.values(), ids=UNREADABLE)
def test_an_invalid_date_is_none(sent: Any) -> None:
    assert (parse_time(sent), date_bucket(sent), source_time(sent)) == (None, None, None)


@pytest.mark.parametrize(("sent", "day"), BORDERS.values(), ids=BORDERS)
def test_a_day_begins_at_midnight_in_chicago_even_when_its_clocks_change(sent: str, day: str) -> None:
    assert date_bucket(sent) == day


def test_every_hour_of_a_year_is_in_the_day_given_by_the_chicago_rule() -> None:
    """The rule without a table of zones: six hours behind UTC in winter, five from March to November."""
    summer = range(1_772_956_800, 1_793_516_400)  # 2026-03-08T08:00Z to 2026-11-01T07:00Z
    first = 1_767_225_600  # 2026-01-01T00:00Z
    for second in range(first, first + 365 * 86_400, 3_600):
        local = second - (5 if second in summer else 6) * 3_600
        expected = datetime.datetime.fromtimestamp(local, datetime.UTC).date()

        assert date_bucket(second) == expected.isoformat()


@given(aware)
def test_a_time_is_the_same_in_every_form(when: datetime.datetime) -> None:
    whole = when.replace(microsecond=0)

    assert parse_time(when.isoformat()) == when
    assert parse_time(whole.strftime("%a, %d %b %Y %H:%M:%S %z")) == whole
    assert parse_time(int(whole.timestamp())) == whole
    assert parse_time(source_time(when.isoformat())) == when


@given(aware, aware)
def test_the_order_of_the_texts_is_the_order_in_time(one: datetime.datetime, other: datetime.datetime) -> None:
    first, second = source_time(one.isoformat()), source_time(other.isoformat())

    assert first is not None
    assert second is not None
    assert (first < second) == (one < other)


@given(st.one_of(st.text(), st.text(st.characters()), st.text(DATE_LIKE, max_size=40), st.integers(), st.none()))
@example("Tue, 17 Feb 2026 10:00:00 +")
@example("1 1 1 1:1:1:1")
@example("- - -")
def test_no_date_raises_and_all_three_functions_agree(sent: str | int | None) -> None:
    found, day, text = parse_time(sent), date_bucket(sent), source_time(sent)

    assert (found is None) == (day is None) == (text is None)
    if found is not None and day is not None:
        assert found.utcoffset() == datetime.timedelta(0)
        assert abs((datetime.date.fromisoformat(day) - found.date()).days) <= 1
        assert parse_time(text) == found
