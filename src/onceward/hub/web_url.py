"""Validation of http and https URLs: only URLs that every program parses in the same way are accepted."""

from __future__ import annotations

import re

LENGTH_MAX = 2048
_PORT_MAX = 65_535

# Characters that a URL must not contain. Browsers silently drop or change some of them, so that two URLs become one.
_NEVER = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_URL = re.compile(
    r"https?://(?:[^/?#@]*@)?(?:\[[0-9a-f:.]+\]|[^/?#@:\[\]]+)(?::(?P<port>[0-9]{1,5}))?(?:[/?#].*)?",
    re.IGNORECASE,
)


def is_web_url(text: str) -> bool:
    if _NEVER.search(text):
        return False
    found = _URL.fullmatch(text)
    return found is not None and int(found["port"] or 0) <= _PORT_MAX
