"""URLs: finding them in text, their canonical form, and the removal of tracking parameters."""

from __future__ import annotations

import re
from urllib.parse import unquote

import ada_url

from onceward.hub.ingest.normalize import tracking

# No browser opens a longer URL, so a longer match is some other data.
FOUND_LENGTH_MAX = 65_536
# The maximum length of a host name.
_HOST_LENGTH_MAX = 253

# After a letter, a digit or a plus, `http` is part of another scheme, such as `git+https`.
_START = re.compile(r"(?<![A-Za-z0-9+])https?://", re.IGNORECASE)
# Characters that end a URL in running text, as the inside of a regex set.
_END = (
    r"\s\x00-\x20\x7f-\x9f<>\"`\\"
    # Invisible characters: zero-width spaces and directional marks.
    r"\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffc"
    # Quotation marks.
    r"\u00ab\u00bb\u201c-\u201f\u2039\u203a"
    # Chinese and Japanese punctuation, which may follow a URL without a space.
    r"\u3000-\u3003\u3008-\u3011\u3014-\u301f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
# A comma, a semicolon or an opening bracket before another URL separates the two.
_PIECE = re.compile(rf"[^{_END}()\[\]{{}},;]++|[)\]}}]|[(\[{{,;](?!https?://)", re.IGNORECASE)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CLOSINGS = frozenset(_CLOSING.values())
# Characters that are not part of a URL at its end, only inside it: punctuation, emphasis, unclosed brackets.
_TRAILING = ".,;:!?'*~|\u2014\u2018\u2019\u2026\u060c\u061b\u061f\u0964([{"

_HTTP = ("http://", "https://")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
# Characters that mean the same with and without percent-encoding, everywhere in a URL (RFC 3986, 2.3).
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Fragments that select the page, in applications that run in the browser.
_ROUTES = ("#!", "#/")


def find_urls(text: str) -> list[str]:
    """Return the http and https URLs in the text, as they are written there, in order.

    Trailing punctuation and an unmatched closing bracket are not part of a URL. A bare `www.` is not a URL: programs
    that make it a link mark it as one. This takes linear time.
    """
    found: list[str] = []
    place = 0
    while (start := _START.search(text, place)) is not None:
        begin, place = start.start(), _end_of_address(text, start.end())
        if place == start.end():
            continue
        # A trailing underscore is emphasis if there is one before the URL too.
        emphasis = "_" if text[begin - 1 : begin] == "_" else ""
        url = text[begin:place].rstrip(_TRAILING + emphasis)
        if len(url) <= FOUND_LENGTH_MAX and canonical(url) is not None:
            found.append(url)
    return found


def canonical(url: str) -> str | None:
    """Return the URL as a browser writes it (WHATWG), without a fragment that only points into the page.

    Equivalent spellings become one: `%7E` becomes `~`, `%2f` becomes `%2F`, and a host loses its trailing root dot.
    Everything else stays: scheme, `www`, user, trailing slash, every parameter and their order. Returns None if a
    browser would not accept it as an http or https URL.
    """
    try:
        href = ada_url.URL(url).href
    except ValueError:
        return None
    if not href.startswith(_HTTP):
        return None
    fragment = href.find("#")
    if fragment >= 0 and not href.startswith(_ROUTES, fragment):
        href = href[:fragment]
    return _without_root_dot(_ESCAPE.sub(_plain, href) if "%" in href else href)


def without_tracking(canonical_url: str) -> str:
    """Return the canonical URL without the parameters listed in `tracking`.

    The other parameters keep their encoding and order. Names are compared decoded and case-insensitively, so
    `UTM%5FSource` is `utm_source`. An empty query is removed with its question mark. Parameters after `#!` or `#/` are
    not examined.
    """
    address, hash_sign, fragment = canonical_url.partition("#")
    page, _, query = address.partition("?")
    if not query:
        return canonical_url
    tracks = tracking.rule_for(_host(page)).tracks
    parameters = query.split("&")
    kept = [parameter for parameter in parameters if not tracks(_name(parameter))]
    if len(kept) == len(parameters):
        return canonical_url
    rest = "&".join(kept)
    return f"{page}?{rest}{hash_sign}{fragment}" if rest else f"{page}{hash_sign}{fragment}"


def _plain(escape: re.Match[str]) -> str:
    """Decode an escape of an unreserved character; write any other escape in upper case.

    If a stray percent sign is right before the escape, it is not decoded: the two together would form a new escape.
    """
    letter, start = chr(int(escape[0][1:], 16)), escape.start()
    if letter in _UNRESERVED and "%" not in escape.string[start - 2 : start]:
        return letter
    return escape[0].upper()


def _without_root_dot(address: str) -> str:
    """Change the host `example.com.` to `example.com`. Two trailing dots, which are not a valid host name, stay."""
    scheme, _, rest = address.partition("://")
    authority, _, page = rest.partition("/")
    user, at, place = authority.rpartition("@")
    host, colon, port = place.partition(":")
    if len(host) == 1 or not host.endswith(".") or host.endswith(".."):
        return address
    return f"{scheme}://{user}{at}{host[:-1]}{colon}{port}/{page}"


def _name(parameter: str) -> str:
    """Return the parameter's name as `tracking` lists it. Only ASCII is lower-cased: a Kelvin sign is not a K."""
    name = parameter.partition("=")[0]
    name = unquote(name) if "%" in name else name
    return name.lower() if name.isascii() else name


def _host(page: str) -> str:
    """Return the host of a canonical URL without user, port and root dot; empty if it is too long for a host."""
    authority = page.partition("://")[2].partition("/")[0]
    host = authority.rpartition("@")[2].partition(":")[0].rstrip(".")
    return host if len(host) <= _HOST_LENGTH_MAX else ""


def _end_of_address(text: str, place: int) -> int:
    """Return the end of the URL whose host starts at `place`: an invalid character, or an unmatched closing bracket."""
    open_brackets: list[str] = []
    while (piece := _PIECE.match(text, place)) is not None:
        mark = piece[0]
        if mark in _CLOSING:
            open_brackets.append(_CLOSING[mark])
        elif mark in _CLOSINGS and (not open_brackets or open_brackets.pop() != mark):
            break
        place = piece.end()
    return place
