"""Templates: Jinja2, which escapes every value and refuses undefined ones, and the filters that the pages use."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from onceward.hub.console.assets import asset_url

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
# Longer texts are cut in lists. The page of one operation shows them whole.
_SHORT_CHARACTERS = 48


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template to HTML.

    Args:
        template: The name of a file in `templates/`.
        values: The variables of the template.

    Returns:
        The text of the page.
    """
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("onceward.hub.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(asset=asset_url, url=url)
    made.filters.update(
        ago=ago, left=left, clock=clock, number=number, pretty=pretty, short=short, plural=plural, words=words
    )
    made.filters["size"] = size
    return made


def url(path: str, **query: object) -> str:
    """Return a path of the console with its query; values that are None or empty are left out."""
    found = urlencode([(name, str(value)) for name, value in query.items() if value not in (None, "")])
    return f"/console/{path}?{found}" if found else f"/console/{path}"


def ago(text: str | None, now: datetime.datetime) -> str:
    """Return how long ago a time was, in the largest unit that fits: `3 min ago`."""
    time = _parsed(text)
    if time is None:
        return "never"
    seconds = (now - time).total_seconds()
    return f"in {_span(-seconds)}" if seconds < -1 else f"{_span(seconds)} ago" if seconds >= 1 else "just now"


def left(text: str | None, now: datetime.datetime) -> str:
    """Return how long it is until a time, or since it: `4 s left`, `lapsed 2 min ago`."""
    time = _parsed(text)
    if time is None:
        return "no end"
    seconds = (time - now).total_seconds()
    return f"{_span(seconds)} left" if seconds > 0 else f"ended {_span(-seconds)} ago"


def _span(seconds: float) -> str:
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        hours, minutes = divmod(whole // _MINUTE, _MINUTE)
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"  # noqa: PLR2004  # 10 h 3 min is noise
    days = whole // _DAY
    return "1 day" if days == 1 else f"{number(days)} days"


def clock(text: str | None) -> str:
    """Return a time for people, in UTC and to the second: `2026-11-18 03:12:09`."""
    return "" if text is None else text[:19].replace("T", " ")


def number(value: float) -> str:
    return f"{value:,.0f}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 claim`, `2 claims`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def size(count: int) -> str:
    """Return a number of bytes in the largest unit that fits: `1.5 MiB`."""
    for unit, factor in _UNITS:
        if count >= factor:
            return f"{count / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{count} B"


def pretty(value: Any) -> str:
    """Return a value as indented JSON, and a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)


def short(text: str | None, characters: int = _SHORT_CHARACTERS) -> str:
    """Return a text that fits into a row of a table."""
    text = text or ""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def words(status: str) -> str:
    """Return a status for people: `in progress`."""
    return status.replace("_", " ")


def _parsed(text: str | None) -> datetime.datetime | None:
    if not text:
        return None
    return datetime.datetime.fromisoformat(text)
