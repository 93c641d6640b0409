"""URLs in running text, in one form, and without tracking parameters."""

from __future__ import annotations

import pytest

from onceward.hub.ingest.normalize import tracking, url
from onceward.hub.ingest.normalize.url import canonical, find_urls, without_tracking

FOUND: dict[str, tuple[str, list[str]]] = {
    "nothing": ("", []),
    "no address": ("http is a protocol; https:// is a beginning", []),
    "alone": ("https://a.example/b", ["https://a.example/b"]),
    "two in order": ("http://b.example then https://a.example", ["http://b.example", "https://a.example"]),
    "the same twice": ("https://a.example https://a.example", ["https://a.example", "https://a.example"]),
    "capitals": ("HTTPS://A.Example/B", ["HTTPS://A.Example/B"]),
    "another scheme": ("ftp://a.example git+https://b.example xhttps://c.example", []),
    "no scheme": ("www.a.example a.example/b", []),
    "no host": ("https:// https://? https://# http://:80", []),
    "no such host": ("https://a..b.example:99999 https://[::1", []),
    "punctuation behind": ("https://a.example/b. https://a.example/c, (https://a.example/d!)", [
        "https://a.example/b",
        "https://a.example/c",
        "https://a.example/d",
    ]),
    "much punctuation behind": ("https://a.example/b?!..., ", ["https://a.example/b"]),
    "punctuation inside": ("https://a.example/b,c;d:e!f.g'h?i=j,k", ["https://a.example/b,c;d:e!f.g'h?i=j,k"]),
    "quotes": ("'https://a.example' \"https://b.example\" «https://c.example» “https://d.example”", [
        "https://a.example",
        "https://b.example",
        "https://c.example",
        "https://d.example",
    ]),
    "angle brackets": ("<https://a.example/b>", ["https://a.example/b"]),
    "brackets of its own": ("https://en.wikipedia.org/wiki/Once_(disambiguation)", [
        "https://en.wikipedia.org/wiki/Once_(disambiguation)"
    ]),
    "brackets around and of its own": ("(see https://en.wikipedia.org/wiki/Once_(film).)", [
        "https://en.wikipedia.org/wiki/Once_(film)"
    ]),
    "a bracket left open": ("https://a.example/b( c)", ["https://a.example/b"]),
    "other brackets": ("{https://a.example/b} [https://a.example/c]", ["https://a.example/b", "https://a.example/c"]),
    "Markdown": ('[a](https://a.example/b_(c)) and ![d](https://d.example/e.png "f")', [
        "https://a.example/b_(c)",
        "https://d.example/e.png",
    ]),
    "Markdown of its own address": ("[https://a.example](https://a.example/b)", [
        "https://a.example",
        "https://a.example/b",
    ]),
    "emphasis": ("**https://a.example/b** _https://a.example/c_ ~~https://a.example/d~~ ||https://a.example/e||", [
        "https://a.example/b",
        "https://a.example/c",
        "https://a.example/d",
        "https://a.example/e",
    ]),
    "punctuation in emphasis": ("_https://a.example/b_._", ["https://a.example/b"]),
    "a low line of its own": ("https://a.example/b_", ["https://a.example/b_"]),
    "HTML": ("<a href=\"https://a.example/?b=1&amp;c=2\">https://a.example</a><a href='https://b.example'>", [
        "https://a.example/?b=1&amp;c=2",
        "https://a.example",
        "https://b.example",
    ]),
    "JSON": (r'{"a":"https://a.example/b","c":["https://c.example\n"]}', [
        "https://a.example/b",
        "https://c.example",
    ]),
    "a list without blanks": ("https://a.example/b,https://c.example;http://d.example", [
        "https://a.example/b",
        "https://c.example",
        "http://d.example",
    ]),
    "one in brackets right behind another": ("https://a.example/b(https://c.example)[https://d.example]", [
        "https://a.example/b",
        "https://c.example",
        "https://d.example",
    ]),
    "a bullet": ("-https://a.example •https://b.example see:https://c.example", [
        "https://a.example",
        "https://b.example",
        "https://c.example",
    ]),
    "one in another": ("https://web.archive.org/web/2020/https://a.example/?b=https://c.example", [
        "https://web.archive.org/web/2020/https://a.example/?b=https://c.example"
    ]),
    "letters of the world": ("https://münchen.example/straße?ü=ö и https://пример.example/путь", [
        "https://münchen.example/straße?ü=ö",
        "https://пример.example/путь",
    ]),
    "Chinese without blanks": ("请看https://a.example/b\uff0c谢谢。\uff08https://c.example/d\uff09「https://e.example」", [
        "https://a.example/b",
        "https://c.example/d",
        "https://e.example",
    ]),
    "Arabic and Hindi punctuation": ("https://a.example/b، https://c.example/d؟ https://e.example/f।", [
        "https://a.example/b",
        "https://c.example/d",
        "https://e.example/f",
    ]),
    "an en dash of its own": ("https://a.example/b\u2013c — https://a.example/d—", [
        "https://a.example/b\u2013c",
        "https://a.example/d",
    ]),
    "characters that nobody sees": ("\u2068https://a.example/b\u2069 https://c.example\u200bd \ufeffhttps://e.example", [
        "https://a.example/b",
        "https://c.example",
        "https://e.example",
    ]),
    "numbers for a host": ("http://127.0.0.1:8787/x http://[2001:db8::1]:80/y", [
        "http://127.0.0.1:8787/x",
        "http://[2001:db8::1]:80/y",
    ]),
    "user and password": ("https://user:secret@a.example/b", ["https://user:secret@a.example/b"]),
    "NUL and half a character": ("https://a.example/b\0c https://a.example/\ud800", ["https://a.example/b"]),
}  # fmt: skip

CANONICAL: dict[str, tuple[str, str | None]] = {
    "as the contract has it": (
        "https://Example.com/Path/?utm_source=x&b=2&a=1#frag",
        "https://example.com/Path/?utm_source=x&b=2&a=1",
    ),
    "blanks around": (" \thttps://a.example/\n", "https://a.example/"),
    "no path": ("https://a.example", "https://a.example/"),
    "a trailing slash stays": ("https://a.example/b/", "https://a.example/b/"),
    "no trailing slash stays": ("https://a.example/b", "https://a.example/b"),
    "www stays": ("https://www.a.example/", "https://www.a.example/"),
    "the scheme stays": ("http://a.example/", "http://a.example/"),
    "the user stays": ("https://User:Pw@A.example/", "https://User:Pw@a.example/"),
    "the usual port goes": ("https://a.example:443/", "https://a.example/"),
    "another port stays": ("https://a.example:444/", "https://a.example:444/"),
    "the order of parameters stays": ("https://a.example/?b=2&a=1&b=1", "https://a.example/?b=2&a=1&b=1"),
    "empty parameters stay": ("https://a.example/?&&=&a=&b", "https://a.example/?&&=&a=&b"),
    "an empty query stays": ("https://a.example/?", "https://a.example/?"),
    "an escape that needs none goes": ("https://a.example/%7eb%2Dc?%7E=%41%30%5f%2E", "https://a.example/~b-c?~=A0_."),
    "other escapes stay, in capitals": (
        "https://a.example/a%2fb%c3%a4?%2f+%20",
        "https://a.example/a%2Fb%C3%A4?%2F+%20",
    ),
    "a slash and its escape differ": ("https://a.example/a/b%2Fc", "https://a.example/a/b%2Fc"),
    "an escaped escape stays": ("https://a.example/%257E%2541", "https://a.example/%257E%2541"),
    "a percent sign alone stays": ("https://a.example/100%?%&%a&%zz=%", "https://a.example/100%?%&%a&%zz=%"),
    "no new escape comes of two": ("https://a.example/%%37E%4%31%%2f", "https://a.example/%%37E%4%31%%2F"),
    "escapes of the user": ("https://%7ea:%2f@a.example/", "https://~a:%2F@a.example/"),
    "escapes of a route": ("https://a.example/#/%7eb%2f", "https://a.example/#/~b%2F"),
    "escaped steps in the path are made": ("https://a.example/b/%2E%2e/c%2Ed", "https://a.example/c.d"),
    "the case of a path stays": ("https://a.example/Path?A=B", "https://a.example/Path?A=B"),
    "the dot of the root goes": ("https://A.example./b", "https://a.example/b"),
    "the dot of the root goes before a port": ("https://u:p@a.example.:444/b", "https://u:p@a.example:444/b"),
    "a dot behind the host stays": ("https://a.example/b./c.?d.#/e.", "https://a.example/b./c.?d.#/e."),
    "a dot alone is not a root": ("https://./", "https://./"),
    "two dots are not a root": ("https://a.example../", "https://a.example../"),
    "a dot of the user stays": ("https://u.@a.example/", "https://u.@a.example/"),
    "what needs an escape gets one": ("https://a.example/ä b?c=d e", "https://a.example/%C3%A4%20b?c=d%20e"),
    "steps in the path are made": ("https://a.example/b/../c/./d", "https://a.example/c/d"),
    "a fragment goes": ("https://a.example/b#c", "https://a.example/b"),
    "an empty fragment goes": ("https://a.example/b#", "https://a.example/b"),
    "a route stays": ("https://a.example/#/b?c=d", "https://a.example/#/b?c=d"),
    "an old route stays": ("https://a.example/?x#!b", "https://a.example/?x#!b"),
    "a hash in a route stays": ("https://a.example/#!b#c", "https://a.example/#!b#c"),
    "a fragment with a route inside goes": ("https://a.example/#b#!c", "https://a.example/"),
    "letters of the world": ("https://MÜNCHEN.example/", "https://xn--mnchen-3ya.example/"),
    "back strokes": ("https:\\\\a.example\\b", "https://a.example/b"),
    "another scheme": ("ftp://a.example/", None),
    "a script": ("javascript:alert(1)", None),
    "no scheme": ("a.example/b", None),
    "no scheme but slashes": ("//a.example/b", None),
    "no host": ("https://", None),
    "a blank in the host": ("https://a b.example/", None),
    "no such port": ("https://a.example:99999/", None),
    "half a character": ("https://a.example/\ud800", None),
    "empty": ("", None),
}

WITHOUT: dict[str, tuple[str, str]] = {
    "as the contract has it": (
        "https://example.com/Path/?utm_source=x&b=2&a=1",
        "https://example.com/Path/?b=2&a=1",
    ),
    "no query": ("https://a.example/b", "https://a.example/b"),
    "nothing of it tracks": ("https://a.example/?b=1&&c", "https://a.example/?b=1&&c"),
    "an empty query": ("https://a.example/?", "https://a.example/?"),
    "all of it tracks": ("https://a.example/?utm_source=x&fbclid=y", "https://a.example/"),
    "only an empty parameter stays": ("https://a.example/?&utm_source=x", "https://a.example/"),
    "empty parameters stay": ("https://a.example/?b=1&&utm_source=x&=&c", "https://a.example/?b=1&&=&c"),
    "without a value": ("https://a.example/?utm_source&b", "https://a.example/?b"),
    "repeated": ("https://a.example/?gclid=1&b=1&gclid=2&b=2", "https://a.example/?b=1&b=2"),
    "with an escape in the name": ("https://a.example/?utm%5Fsource=x&b=1", "https://a.example/?b=1"),
    "with a broken escape in the name": (
        "https://a.example/?utm%5=x&%=1&%FF=2",
        "https://a.example/?utm%5=x&%=1&%FF=2",
    ),
    "the rest is not encoded again": (
        "https://a.example/?b=%7e+%20%2F&utm_id=1&c=%C3%A4'|",
        "https://a.example/?b=%7e+%20%2F&c=%C3%A4'|",
    ),
    "a name in a value": ("https://a.example/?b=utm_source&c=fbclid=1", "https://a.example/?b=utm_source&c=fbclid=1"),
    "a name in the path": ("https://a.example/utm_source=1", "https://a.example/utm_source=1"),
    "a name in a route": ("https://a.example/?utm_id=1#/b?utm_id=2", "https://a.example/#/b?utm_id=2"),
    "a question mark in the query": ("https://a.example/?b?utm_id=1&utm_id=2", "https://a.example/?b?utm_id=1"),
    "in capitals": ("https://a.example/?UTM_Source=x&FBCLID=y&b=1&sccid=z&wt.MC_id=0", "https://a.example/?b=1"),
    "a host's own names in capitals": ("https://youtu.be/abc?SI=x&t=5", "https://youtu.be/abc?t=5"),
    "a name that carries meaning there in capitals": (
        "https://app-1.marketo.com/u?MKT_TOK=x&utm_source=y",
        "https://app-1.marketo.com/u?MKT_TOK=x",
    ),
    "a letter that only looks like a capital": (
        "https://a.example/?p%E2%84%AA_kwd=x",
        "https://a.example/?p%E2%84%AA_kwd=x",
    ),
    "a longer name is another": (
        "https://a.example/?utm_sources=x&xgclid=1",
        "https://a.example/?utm_sources=x&xgclid=1",
    ),
    "ref is not listed": ("https://a.example/?ref=x&source=y&s=z", "https://a.example/?ref=x&source=y&s=z"),
    "a host's own names": ("https://youtu.be/abc?si=x&t=5", "https://youtu.be/abc?t=5"),
    "below the host": ("https://music.youtube.com/watch?v=1&si=x", "https://music.youtube.com/watch?v=1"),
    "not on other hosts": ("https://notyoutube.com/?si=x", "https://notyoutube.com/?si=x"),
    "not by the end of a name": ("https://youtube.com.a.example/?si=x", "https://youtube.com.a.example/?si=x"),
    "not by the user": ("https://youtube.com@a.example/?si=x", "https://youtube.com@a.example/?si=x"),
    "user and port beside": ("https://u:p@youtube.com:81/?si=x&v=1", "https://u:p@youtube.com:81/?v=1"),
    "the dot of the root": ("https://youtube.com./?si=x&v=1", "https://youtube.com./?v=1"),
    "the nearest domain's rule": ("https://aws.amazon.com/?ref=a&trk=b&tag=c", "https://aws.amazon.com/?ref=a&tag=c"),
    "all names beside a host's own": ("https://youtube.com/?utm_source=x&v=1", "https://youtube.com/?v=1"),
    "a copy has its whole address": (
        "https://web.archive.org/web/2020/https://a.example/?utm_source=x",
        "https://web.archive.org/web/2020/https://a.example/?utm_source=x",
    ),
    "a name that carries meaning there": (
        "https://app-1.marketo.com/u?mkt_tok=x&utm_source=y",
        "https://app-1.marketo.com/u?mkt_tok=x",
    ),
    "names with brackets": ("https://facebook.com/?__cft__[0]=x&__xts__%5B0%5D=y&id=1", "https://facebook.com/?id=1"),
    "a host of numbers": ("http://[::1]:80/?utm_id=1&a", "http://[::1]:80/?a"),
}


@pytest.mark.parametrize(("text", "urls"), FOUND.values(), ids=FOUND)
def test_urls_are_found_in_running_text(text: str, urls: list[str]) -> None:
    assert find_urls(text) == urls


@pytest.mark.parametrize(("came", "written"), CANONICAL.values(), ids=CANONICAL)
def test_a_url_is_written_as_a_browser_writes_it(came: str, written: str | None) -> None:
    assert canonical(came) == written
    assert written is None or canonical(written) == written


@pytest.mark.parametrize(("came", "rest"), WITHOUT.values(), ids=WITHOUT)
def test_only_tracking_parameters_are_removed(came: str, rest: str) -> None:
    assert without_tracking(came) == rest
    assert without_tracking(rest) == rest


def test_every_listed_name_is_removed_everywhere() -> None:
    addresses = [canonical(f"https://a.example/b?c=1&{name}=2&d=3") for name in sorted(tracking.EVERYWHERE)]

    assert {without_tracking(address or "") for address in addresses} == {"https://a.example/b?c=1&d=3"}


def test_a_url_that_is_too_long_is_skipped_and_later_ones_are_found() -> None:
    longest = "https://a.example/" + "b" * (url.FOUND_LENGTH_MAX - len("https://a.example/"))

    assert find_urls(f"{longest} {longest}b https://c.example") == [longest, "https://c.example"]


# The repeated text, the number of repetitions, and the number of URLs. Each would take hours with a quadratic
# algorithm.
HUGE = {
    "closing brackets": ("https://a)", 20_000, 20_000),
    "opening brackets": ("https://a(b", 200_000, 0),
    "commas": ("https://a,", 20_000, 20_000),
    "beginnings": ("http", 2_500_000, 0),
    "beginnings with nothing behind": ("https:// ", 200_000, 0),
    "dots": ("https://a" + "." * 2_000_000, 1, 1),
    "brackets": ("https://" + "(" * 500_000, 1, 0),
    "one long address": ("https://a.b/" + "c" * 10_000_000, 1, 0),
}


@pytest.mark.parametrize(("again", "times", "found"), HUGE.values(), ids=HUGE)
def test_a_huge_text_takes_linear_time(again: str, times: int, found: int) -> None:
    assert len(find_urls(again * times)) == found


def test_a_huge_url_takes_linear_time() -> None:
    """A host of many names above each other, and a query of many parameters."""
    hosts, parameters = "a." * 2_000_000, "utm_id=1&b&" * 500_000

    assert without_tracking(f"https://{hosts}/?b&utm_id=1") == f"https://{hosts}/?b"
    assert without_tracking(f"https://a.example/?{parameters}") == "https://a.example/?" + "b&" * 500_000
