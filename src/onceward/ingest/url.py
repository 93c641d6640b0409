"""Web addresses: found in text, written in one form, and without what tracks their readers."""

from __future__ import annotations

import re
from urllib.parse import unquote

import ada_url

from onceward.ingest import tracking

# A longer one is data, not an address that somebody could open.
_FOUND_LENGTH_MAX = 65_536

_START = re.compile(r"(?<![A-Za-z0-9+.\-])https?://", re.IGNORECASE)
# What ends an address in running text: white space, quotes and angle brackets, and the wide punctuation of Chinese and
# Japanese, which write no blank behind an address.
_ENDS = r"\s\x00-\x20\x7f-\x9f<>\"`\\\u201c-\u201f\u00ab\u00bb\u2039\u203a\u3000-\u3003\u3008-\u3011\u3014-\u301f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\ufffc"
_PIECE = re.compile(rf"[^{_ENDS}()\[\]{{}},;]++|[()\[\]{{}}]|[,;](?!https?://)", re.IGNORECASE)
_REST = re.compile(rf"[^{_ENDS}]*+")
_OPENS = {"(": ")", "[": "]", "{": "}"}
_CLOSES = frozenset(_OPENS.values())
# What is no part of an address at its end, though it may be in its middle.
_TRAILING = ".,;:!?'*~\u2018\u2019\u2026([{"

_HTTP = ("http://", "https://")
# Fragments that choose the page: addresses of applications that run in the browser.
_ROUTES = ("#!", "#/")


def find_urls(text: str) -> list[str]:
    """The http and https addresses in the text, as they are written there, in order.

    Punctuation behind an address and a closing bracket that it did not open are not part of it. A bare `www.` is none:
    programs that link one say so themselves. Time grows with the length of the text and no faster.
    """
    found: list[str] = []
    place = 0
    while (start := _START.search(text, place)) is not None:
        place = _end_of_url(text, start.end())
        url = text[start.start() : place].rstrip(_TRAILING)
        before = text[start.start() - 1 : start.start()]
        # Emphasis: what stands before the address and behind it is around it.
        if before == "_":
            url = url.rstrip("_")
        if canonical(url) is not None:
            found.append(url)
    return found


def canonical(url: str) -> str | None:
    """The address as a browser writes it (WHATWG), without a fragment that only points into the page.

    Nothing else is lost: scheme, `www`, user, trailing slash, every parameter and their order stay. None if a browser
    would not take it for an http or https address.
    """
    try:
        href = ada_url.URL(url).href
    except ValueError:
        return None
    if not href.startswith(_HTTP):
        return None
    hash_at = href.find("#")
    if hash_at < 0 or href.startswith(_ROUTES, hash_at):
        return href
    return href[:hash_at]


def without_tracking(canonical_url: str) -> str:
    """The canonical address without the parameters of `tracking`. What stays is not encoded anew and keeps its order.

    Names are compared as servers read them, so `utm%5Fsource` is `utm_source`. A query of which nothing is left goes
    with its question mark. What stands behind `#!` or `#/` is not looked into.
    """
    address, hash_sign, fragment = canonical_url.partition("#")
    page, mark, query = address.partition("?")
    if not query:
        return canonical_url
    rule = tracking.rule_for(_host(page))
    pieces = query.split("&")
    kept = [piece for piece in pieces if not _tracks(piece, rule)]
    if len(kept) == len(pieces):
        return canonical_url
    rest = "&".join(kept)
    return f"{page}{mark if rest else ''}{rest}{hash_sign}{fragment}"


def _tracks(piece: str, rule: tracking.HostRule | None) -> bool:
    name = piece.partition("=")[0]
    if "%" in name:
        name = unquote(name)
    if rule is None:
        return name in tracking.EVERYWHERE
    return name in rule.adds or (name in tracking.EVERYWHERE and name not in rule.keeps)


def _host(page: str) -> str:
    """The host of a canonical address, without user, port and the dot of its root."""
    authority = page.split("/", 3)[2]
    return authority.rpartition("@")[2].partition(":")[0].rstrip(".")


def _end_of_url(text: str, place: int) -> int:
    """Where the address ends whose host begins at `place`: at what never is in one, or at a bracket it did not open."""
    start = place
    wanted: list[str] = []
    while place - start <= _FOUND_LENGTH_MAX and (piece := _PIECE.match(text, place)) is not None:
        mark = piece[0]
        if mark in _OPENS:
            wanted.append(_OPENS[mark])
        elif mark in _CLOSES:
            if not wanted or wanted.pop() != mark:
                break
        place = piece.end()
    return place
