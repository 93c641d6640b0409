"""Filters of the templates, and the two promises of the environment."""

from __future__ import annotations

import datetime

import pytest
from jinja2 import UndefinedError

from onceward.hub.console import rendering
from onceward.hub.console.rendering import ago, clock, left, plural, pretty, short, size, url

NOW = datetime.datetime(2026, 11, 18, 12, 0, tzinfo=datetime.UTC)


def at(**span: float) -> str:
    return (NOW - datetime.timedelta(**span)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("span", "text"),
    [
        ({"seconds": 0}, "just now"),
        ({"seconds": 59}, "59 s ago"),
        ({"minutes": 59}, "59 min ago"),
        ({"hours": 3, "minutes": 5}, "3 h 5 min ago"),
        ({"hours": 11, "minutes": 5}, "11 h ago"),
        ({"days": 1}, "1 day ago"),
        ({"days": 40}, "40 days ago"),
        ({"seconds": -90}, "in 1 min"),
    ],
)
def test_an_age_has_one_unit_that_people_read_at_a_glance(span: dict[str, float], text: str) -> None:
    assert ago(at(**span), NOW) == text


def test_a_lease_is_left_or_ended() -> None:
    assert (left(at(seconds=-4), NOW), left(at(minutes=2), NOW)) == ("4 s left", "ended 2 min ago")
    assert (ago(None, NOW), left(None, NOW)) == ("never", "no end")


def test_texts_for_people() -> None:
    assert clock("2026-11-18T03:12:09.123456Z") == "2026-11-18 03:12:09"
    assert (plural(1, "claim"), plural(1200, "claim")) == ("1 claim", "1,200 claims")
    assert (short("a" * 60), short(None)) == ("a" * 47 + "\u2026", "")
    assert (pretty("text"), pretty({"a": 1})) == ("text", '{\n  "a": 1\n}')
    assert url("operations", q="a b&c", after="") == "/console/operations?q=a+b%26c"


def test_the_templates_escape_and_refuse_what_is_not_defined() -> None:
    environment = rendering._environment()

    assert environment.from_string("{{ name }}").render(name="<b>") == "&lt;b&gt;"
    with pytest.raises(UndefinedError):
        environment.from_string("{{ nothing }}").render()


def test_a_number_of_bytes_is_shown_in_the_largest_unit_that_fits() -> None:
    assert [size(count) for count in (0, 1023, 1024, 1536, 100 * 2**20, 2**31)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "100 MiB",
        "2 GiB",
    ]
