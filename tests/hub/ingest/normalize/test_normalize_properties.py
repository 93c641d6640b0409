"""Properties of the pure parts, tested with many generated inputs."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, unquote

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from onceward.errors import InvalidInput
from onceward.hub.ingest.normalize import keys, tracking
from onceward.hub.ingest.normalize.keys import (
    from_addr,
    link_keys,
    message_id,
    newsletter_keys,
    stored,
    thought_keys,
    thread_keys,
    thread_v2_keys,
)
from onceward.hub.ingest.normalize.subject import subject_base, thread_subject
from onceward.hub.ingest.normalize.text import clean, composed, sha256_hex
from onceward.hub.ingest.normalize.url import canonical, find_urls, without_tracking

# Also with halves of characters, which `st.text()` leaves out.
anything = st.text(st.characters(exclude_categories=()))
MARKS = "ae\u0301\u0316\u0f73\u0345\u093c\u0958\u3000 \u1100\u1161\u11a8\ud800\0"

LISTED = sorted(tracking.EVERYWHERE)
hosts = st.sampled_from(
    [
        "a.example",
        "a.example.",
        "A.example..",
        "www.youtube.com",
        "x.com",
        "web.archive.org",
        "münchen.example",
        "[::1]:81",
        "u@b.example",
    ]
)
URL_PIECES = (
    "/",
    "?",
    "#",
    "&",
    "=",
    "%",
    "%5F",
    "%20",
    "%7e",
    "%2f",
    "%4",
    "1",
    "%%",
    "%2E",
    ".",
    "+",
    "..",
    "@",
    ":",
    "\\",
    "[",
    "]",
    "(",
    ")",
    " ",
    "utm_id",
    "a",
    "ä",
    "#!",
    "\t",
)
tails = st.lists(st.one_of(st.sampled_from(URL_PIECES), st.sampled_from(LISTED), anything), max_size=12).map("".join)
urls = st.builds(
    lambda scheme, host, tail: f"{scheme}://{host}{tail}", st.sampled_from(["http", "https", "HTTPS"]), hosts, tails
)
# Listed names, as programs write them and in capitals.
listed = st.sampled_from(LISTED).flatmap(lambda name: st.sampled_from([name, name.upper(), name.title()]))
# Names and values as forms send them: every character has its place.
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
parameters = st.lists(st.tuples(st.one_of(plain, listed), plain), max_size=5)


def address(parameters: list[tuple[str, str]]) -> str:
    return "https://a.example/?" + "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in parameters)


@given(anything)
def test_cleaning_twice_changes_nothing(came: str) -> None:
    assert clean(clean(came)) == clean(came)


@given(
    st.lists(st.tuples(st.sampled_from(MARKS), st.integers(1, 40))).map(lambda runs: "".join(c * n for c, n in runs))
)
@example("\u0958" + "\u0301" * 31)
def test_cleaning_runs_of_marks_twice_changes_nothing(came: str) -> None:
    assert clean(clean(came)) == clean(came)
    assert unicodedata.normalize("NFC", composed(came)) == unicodedata.normalize("NFC", came)


@given(st.text(max_size=30))
def test_text_with_few_combining_marks_is_in_nfc(came: str) -> None:
    assert composed(came) == unicodedata.normalize("NFC", came)


@given(st.one_of(urls, anything))
@example("https://a.example/#!#")
@example("https://a.example/?#!\t")
def test_normalizing_a_url_twice_changes_nothing(came: str) -> None:
    written = canonical(came)
    if written is None:
        return
    rest = without_tracking(written)

    assert canonical(written) == written
    assert canonical(rest) == rest
    assert without_tracking(rest) == rest


@given(urls)
def test_removing_tracking_only_removes_parameters(came: str) -> None:
    written = canonical(came)
    assume(written is not None and "#" not in written)
    assert written is not None
    page, _, query = written.partition("?")
    kept_page, _, kept_query = without_tracking(written).partition("?")
    kept = iter(kept_query.split("&"))
    waiting = next(kept)
    removed = []
    for parameter in query.split("&"):
        if parameter == waiting:
            waiting = next(kept, "\0")
        else:
            removed.append(unquote(parameter.partition("=")[0]))

    assert kept_page == page
    assert waiting in {"\0", ""}
    assert all(name.lower() in tracking.EVERYWHERE or tracking.rule_for(_host(page)).adds for name in removed if name)


@given(parameters, parameters)
def test_urls_that_differ_in_any_parameter_never_share_a_primary_key(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    assume(one != other)

    assert (link_keys(address(one)).primary == link_keys(address(other)).primary) == (address(one) == address(other))


# Characters that mean the same with an escape and without one, and characters that do not. (A browser writes the
# escape of an apostrophe by itself in a query.)
SAME = "abzAZ059-_~"
OTHER = "!$()*,;:@+/"


def escaped(text: str, letters: str, written: str) -> str:
    """The text with an escape for each of these characters: `02x` in small letters, `02X` in capitals."""
    return "".join(f"%{ord(one):{written}}" if one in letters else one for one in text)


@given(
    st.text(SAME + OTHER, max_size=12),
    st.sets(st.sampled_from(SAME)).map("".join),
    st.sampled_from(["02x", "02X"]),
    st.sampled_from(["a.example", "A.EXAMPLE", "a.example.", "a.example.:443", "%61.example."]),
)
def test_equivalent_urls_have_the_same_keys(came: str, letters: str, written: str, host: str) -> None:
    other = escaped(came, letters, written)
    tail, small, capital = "%e4/%2F", f"{came}%c3%a4%2f", f"{other}%C3%A4%2F"

    assert link_keys(f"https://a.example/x{small}?q={small}") == link_keys(f"https://{host}/x{capital}?q={capital}")
    assert link_keys(f"https://a.example/#/{came}{tail}") == link_keys(f"https://{host}/#/{other}{tail.upper()}")


@given(
    st.text(SAME + OTHER, max_size=12), st.text(SAME + OTHER, max_size=12), st.sets(st.sampled_from(OTHER), min_size=1)
)
def test_urls_that_differ_in_a_significant_character_or_escape_have_other_keys(
    one: str, other: str, letters: set[str]
) -> None:
    hidden = escaped(one, "".join(letters), "02X")
    for pattern in ("https://a.example/x{}z", "https://a.example/?q={}"):
        for second in (hidden, other, one.swapcase()):
            same = link_keys(pattern.format(one)) == link_keys(pattern.format(second))
            assert same == (one == second)
            assert (link_keys(pattern.format(one)).primary == link_keys(pattern.format(second)).primary) == same


@given(parameters, parameters)
def test_urls_share_a_secondary_key_only_if_they_differ_in_listed_parameters(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    shared = link_keys(address(one)).secondary == link_keys(address(other)).secondary

    assert shared == (_unlisted(one) == _unlisted(other))


@settings(max_examples=40)
@given(st.lists(st.one_of(urls, anything, st.sampled_from("()[]{}.,;:!?'\"<>*_~| \n")), max_size=8).map("".join))
def test_found_urls_are_in_the_text_in_order_and_can_be_keyed(text: str) -> None:
    place = 0
    for found in find_urls(text):
        place = text.index(found, place) + len(found)

        assert link_keys(found).primary
        assert find_urls(found) == [found]
        assert find_urls(f'<{found}> "{found}".') == [found, found]


@given(
    st.lists(
        st.sampled_from(["http://", "https://", "a", ".", ")", "(", "[", "]", ",", "https://a.b", " ", "_", "'"])
    ).map("".join)
)
@example("_http://'_")
def test_adjacent_urls_are_found_separately(text: str) -> None:
    assert all(canonical(found) is not None and find_urls(found) == [found] for found in find_urls(text))


@given(anything)
@example("<<>a>")
def test_an_id_in_brackets_is_unchanged(came: str) -> None:
    written = message_id(came)

    assert message_id(written) == written
    assert message_id(f" {came}\n") == written


@given(st.one_of(anything, st.text("aB@\"\\()<>,;:' .\n")))
@example("'a@b'")
@example("''a@b")
def test_a_sender_has_one_form(came: str) -> None:
    written = from_addr(came)

    assert from_addr(written) == written


ids = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    anything,
    st.lists(st.integers()),
    st.from_regex(r"\s*-?\d{1,25}\s*"),
)


@given(ids, ids, anything)
@example("0\x1f", 1, "")
def test_a_thought_raises_nothing_but_a_refusal(chat: Any, message: Any, text: str) -> None:
    with contextlib.suppress(InvalidInput):
        known = thought_keys(chat, message, text)

        assert known.primary == f"tg:{int(str(chat).strip())}:{int(str(message).strip())}"


maybe = st.one_of(st.none(), anything)


@given(maybe, maybe, maybe, st.one_of(maybe, st.integers()), st.lists(anything))
def test_a_mail_raises_nothing_but_a_refusal(
    own_id: str | None, sender: str | None, subject: str | None, date: str | int | None, references: list[str]
) -> None:
    calls: list[Callable[[], keys.EntryKeys]] = [
        lambda: newsletter_keys(own_id, sender, subject, date),
        lambda: thread_keys(subject),
        lambda: thread_v2_keys(references, own_id, sender, subject),
        lambda: link_keys(subject or ""),
    ]
    for call in calls:
        with contextlib.suppress(InvalidInput):
            known = call()
            made = [key for key in (known.primary, known.secondary) if key is not None]

            assert made
            assert all(len(key.encode("utf-8", "surrogatepass")) <= keys.KEY_BYTES_MAX for key in made)


@given(anything)
def test_a_thread_has_the_same_key_as_its_base(came: str) -> None:
    base, thread = subject_base(came), thread_subject(came)
    assume(base and thread)

    assert thread_keys(came).primary == sha256_hex(base) == thread_keys(base).primary
    assert thread_v2_keys([], None, None, came) == thread_v2_keys([], None, None, thread)


@given(anything)
def test_storing_a_stored_key_changes_nothing(came: str) -> None:
    assert stored(stored(came)) == stored(came)
    assert len(stored(came).encode("utf-8", "surrogatepass")) <= keys.KEY_BYTES_MAX


def _unlisted(parameters: list[tuple[str, str]]) -> list[str] | None:
    """The query without the listed names; None for an originally empty query, which stays."""
    left = [
        f"{name}={value}" for name, value in parameters if not (name.isascii() and name.lower() in tracking.EVERYWHERE)
    ]
    return None if not parameters else left


def _host(page: str) -> str:
    return page.split("/")[2].rpartition("@")[2].partition(":")[0]
