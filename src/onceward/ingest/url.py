"""Web addresses: found in text, written in one form, and without what tracks their readers."""

from __future__ import annotations

import re
from urllib.parse import unquote

import ada_url

from onceward.ingest import tracking

# Nobody can open a longer one; what looks like it is data.
FOUND_LENGTH_MAX = 65_536
# Names of hosts are no longer than this.
_HOST_LENGTH_MAX = 253

# Behind a letter, a digit or a plus the scheme is another one, such as `git+https`.
_START = re.compile(r"(?<![A-Za-z0-9+])https?://", re.IGNORECASE)
# What ends an address in running text, written as the inside of a set.
_END = (
    r"\s\x00-\x20\x7f-\x9f<>\"`\\"
    # Characters that nobody sees: zero-width blanks and marks of direction.
    r"\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufffc"
    # Quotation marks.
    r"\u00ab\u00bb\u201c-\u201f\u2039\u203a"
    # The punctuation of Chinese and Japanese, which write no blank behind an address.
    r"\u3000-\u3003\u3008-\u3011\u3014-\u301f\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
)
# A comma, a semicolon or an opening bracket before another address only parts the two.
_PIECE = re.compile(rf"[^{_END}()\[\]{{}},;]++|[)\]}}]|[(\[{{,;](?!https?://)", re.IGNORECASE)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CLOSINGS = frozenset(_CLOSING.values())
# What is no part of an address at its end, though it may be one before: punctuation, emphasis, brackets left open.
_TRAILING = ".,;:!?'*~|\u2014\u2018\u2019\u2026\u060c\u061b\u061f\u0964([{"

_HTTP = ("http://", "https://")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
# Characters that mean the same with and without an escape, everywhere in an address (RFC 3986, 2.3).
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
# Fragments that choose the page, in applications that run in the browser.
_ROUTES = ("#!", "#/")


def find_urls(text: str) -> list[str]:
    """The http and https addresses in the text, as they are written there, in order.

    Punctuation behind an address and a closing bracket that it did not open are not part of it. A bare `www.` is none:
    programs that make a link of it say so themselves. The time grows with the length of the text and no faster.
    """
    found: list[str] = []
    place = 0
    while (start := _START.search(text, place)) is not None:
        begin, place = start.start(), _end_of_address(text, start.end())
        if place == start.end():
            continue
        # A low line is emphasis if one is before the address too.
        emphasis = "_" if text[begin - 1 : begin] == "_" else ""
        url = text[begin:place].rstrip(_TRAILING + emphasis)
        if len(url) <= FOUND_LENGTH_MAX and canonical(url) is not None:
            found.append(url)
    return found


def canonical(url: str) -> str | None:
    """Write the address as a browser does (WHATWG), without a fragment that only points into the page.

    What says the same is written in one way: `%7E` as `~`, `%2f` as `%2F`, and a host without the dot of the root.
    Nothing else is lost: scheme, `www`, user, trailing slash, every parameter and their order stay. None if a browser
    would not take it for an http or https address.
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
    """The canonical address without the parameters of `tracking`. What stays is not encoded anew and keeps its order.

    Names are compared as servers read them and in any case, so `UTM%5FSource` is `utm_source`. A query of which nothing is left goes
    with its question mark. What is behind `#!` or `#/` is not looked into.
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
    """The character of an escape that needs none; any other escape with capitals.

    A percent sign that begins no escape may stand right before: together with the character it would begin one.
    """
    letter, start = chr(int(escape[0][1:], 16)), escape.start()
    if letter in _UNRESERVED and "%" not in escape.string[start - 2 : start]:
        return letter
    return escape[0].upper()


def _without_root_dot(address: str) -> str:
    """`example.com.` is `example.com`. Two dots at the end are no name of a host, and stay."""
    scheme, _, rest = address.partition("://")
    authority, _, page = rest.partition("/")
    user, at, place = authority.rpartition("@")
    host, colon, port = place.partition(":")
    if len(host) == 1 or not host.endswith(".") or host.endswith(".."):
        return address
    return f"{scheme}://{user}{at}{host[:-1]}{colon}{port}/{page}"


def _name(parameter: str) -> str:
    """As the list has names. Only ASCII has other cases here: a Kelvin sign is no K."""
    name = parameter.partition("=")[0]
    name = unquote(name) if "%" in name else name
    return name.lower() if name.isascii() else name


def _host(page: str) -> str:
    """The host of a canonical address without user, port and the dot of the root; empty if it is too long for one."""
    authority = page.partition("://")[2].partition("/")[0]
    host = authority.rpartition("@")[2].partition(":")[0].rstrip(".")
    return host if len(host) <= _HOST_LENGTH_MAX else ""


def _end_of_address(text: str, place: int) -> int:
    """Where the address ends of which the host begins there: at what never is in one, or at a bracket it did not open."""
    open_brackets: list[str] = []
    while (piece := _PIECE.match(text, place)) is not None:
        mark = piece[0]
        if mark in _CLOSING:
            open_brackets.append(_CLOSING[mark])
        elif mark in _CLOSINGS and (not open_brackets or open_brackets.pop() != mark):
            break
        place = piece.end()
    return place
