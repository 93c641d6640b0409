"""Timestamps as text sort like time, and are read back to the microsecond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceward.core.timestamp import from_text, to_text

# From 1970 to the end of the year 9999.
moments = st.integers(0, 253_402_300_799_999_999)


def test_a_timestamp_is_written_in_utc_with_six_digits_of_fraction() -> None:
    assert to_text(0) == "1970-01-01T00:00:00.000000Z"
    assert to_text(1) == "1970-01-01T00:00:00.000001Z"
    assert to_text(1_750_000_000_123_457) == "2025-06-15T15:06:40.123457Z"


@given(moments)
def test_a_timestamp_is_read_back_to_the_microsecond(moment: int) -> None:
    assert from_text(to_text(moment)) == moment


@given(moments, moments)
def test_the_order_of_texts_is_the_order_of_times(one: int, other: int) -> None:
    assert (to_text(one) < to_text(other)) == (one < other)
