"""Whether a text is an http or https URL that every program reads in the same way."""

from __future__ import annotations

import re

LENGTH_MAX = 2048
_PORT_MAX = 65_535

# What no URL contains. Browsers drop or change some of these silently, which would make one URL of two.
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
