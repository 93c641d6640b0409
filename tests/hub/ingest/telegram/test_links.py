"""Positions of links in a text, and the URLs of a message."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub.ingest.telegram.message_forms import units

from onceward.core.canonical import Json
from onceward.hub.ingest.normalize.fields import Fields
from onceward.hub.ingest.telegram import normalize_telegram
from onceward.hub.ingest.telegram.linked_text import Link, Passage, marked
from onceward.hub.ingest.telegram.links import address_of, addresses


def mark(offset: int, length: int, kind: str = "url", **more: Json) -> dict[str, Json]:
    return {"type": kind, "offset": offset, "length": length, **more}


def passage(text: str, *marks: dict[str, Json]) -> Passage:
    return marked(text, [Fields(entity, "entities") for entity in marks])


def written(text: str, *marks: dict[str, Json]) -> list[str]:
    return [address.written for address in addresses(passage(text, *marks))]


@pytest.mark.parametrize(
    ("text", "entity", "covered"),
    [
        ("ab cd", mark(3, 2), "cd"),
        ("\u00e4\u4e2d cd", mark(3, 2), "cd"),
        ("🙂 cd", mark(3, 2), "cd"),
        ("🙂🙂cd🙂", mark(4, 2), "cd"),
        ("👩\u200d👩\u200d👧 cd", mark(9, 2), "cd"),
        ("ab", mark(0, 2), "ab"),
        # Half a surrogate pair is not part of an entity.
        ("🙂cd", mark(1, 3), "cd"),
        ("cd🙂", mark(0, 3), "cd"),
        ("a🙂b", mark(2, 1), None),
        # Entities outside of the text are ignored.
        ("abcd", mark(2, 99), "cd"),
        ("abcd", mark(4, 1), None),
        ("abcd", mark(99, 1), None),
        ("abcd", mark(-2, 3), None),
        ("abcd", mark(2, 0), None),
        ("abcd", mark(2, -1), None),
        ("", mark(0, 1), None),
        ("abcd", mark(2**62, 2**62), None),
    ],
)
def test_an_entity_is_measured_in_utf_16_units(text: str, entity: dict[str, Json], covered: str | None) -> None:
    links = passage(text, entity).links

    assert [text[link.start : link.end] for link in links] == ([] if covered is None else [covered])


def test_only_link_entities_are_kept() -> None:
    entities = [mark(0, 1, "bold"), mark(1, 1), mark(2, 1, "mention"), mark(3, 1, "text_link", url="x")]

    assert passage("abcd", *entities).links == (Link(1, 2, None), Link(3, 4, "x"))


HIDDEN = "https://hidden.example/"
TEXTS: dict[str, tuple[str, list[dict[str, Json]], list[str]]] = {
    "written out": ("See https://a.example/x.", [], ["https://a.example/x"]),
    "written out and marked": ("See https://a.example/x.", [mark(4, 19)], ["https://a.example/x"]),
    "marked with text around it": ("See https://a.example/x.", [mark(4, 20)], ["https://a.example/x"]),
    "behind words": ("See this", [mark(4, 4, "text_link", url=HIDDEN)], [HIDDEN]),
    "behind another address": ("https://a.example/", [mark(0, 18, "text_link", url=HIDDEN)], [HIDDEN]),
    "behind words, after one": ("https://a.example/ x", [mark(19, 1, "text_link", url=HIDDEN)], ["https://a.example/", HIDDEN]),
    "behind words, before one": ("x https://a.example/", [mark(0, 1, "text_link", url=HIDDEN)], [HIDDEN, "https://a.example/"]),
    "in any order of marks": ("x a.example", [mark(2, 9), mark(0, 1, "text_link", url=HIDDEN)], [HIDDEN, "a.example"]),
    "without a scheme": ("See a.example", [mark(4, 9)], ["a.example"]),
    "without a scheme and a mark": ("See a.example and www.b.example", [], []),
    "with a path": ("a.example/notes.md", [mark(0, 18)], ["a.example/notes.md"]),
    "a file": ("Edit notes.md", [mark(5, 8)], []),
    "a file in capitals": ("Edit README.MD", [mark(5, 9)], []),
    "a page of such a host": ("docs.rs/serde", [mark(0, 13)], ["docs.rs/serde"]),
    "such a host with www": ("www.docs.rs", [mark(0, 11)], ["www.docs.rs"]),
    "such a host with a port": ("docs.rs:8080", [mark(0, 12)], ["docs.rs:8080"]),
    "such a host with a scheme": ("https://docs.rs", [mark(0, 15)], ["https://docs.rs"]),
    "a mention behind an address": ("https://a.example/", [mark(0, 18, "text_link", url="tg://user?id=5")], ["https://a.example/"]),
    "another scheme": ("ftp://a.example/ mailto:a@b.example", [mark(0, 16), mark(17, 18)], []),
    "marks over each other": ("a.example/b.example", [mark(0, 19), mark(10, 9), mark(0, 9)], ["a.example/b.example"]),
    "an address in a mark that is none": ("all of https://b.example/", [mark(0, 25)], ["https://b.example/"]),
    "an address in another": ("a.example/https://b.example", [mark(0, 27)], ["a.example/https://b.example"]),
    "the same twice": ("https://a.example https://a.example", [], ["https://a.example", "https://a.example"]),
    "after a face": ("🙂 a.example", [mark(3, 9)], ["a.example"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_the_urls_of_a_text_are_found_in_order(case: str) -> None:
    text, marks, found = TEXTS[case]

    assert written(text, *marks) == found


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("a.example", "https://a.example"),
        ("a.example:80/x?y#z", "https://a.example:80/x?y#z"),
        ("HTTP://A.example", "HTTP://A.example"),
        ("b\u00fccher.example", "https://b\u00fccher.example"),
        ("a", None),
        ("a.b c", None),
        ("a@b.example", None),
        ("mailto:a@b.example", None),
        ("a..example", None),
        (".example", None),
        ("", None),
    ],
)
def test_a_url_may_lack_its_scheme(text: str, full: str | None) -> None:
    found = address_of(text)

    assert (None if found is None else found.full) == full


faces = st.text(st.sampled_from("ab \u00e4\u4e2d\u200d🙂👩🏽\U0001d4b3\n"), max_size=20)


@given(before=faces, words=faces.filter(bool), after=faces)
def test_a_link_is_found_after_any_characters(before: str, words: str, after: str) -> None:
    entity = mark(units(before), units(words), "text_link", url=HIDDEN)

    found = passage(before + words + after, entity)

    assert found.links == (Link(len(before), len(before + words), HIDDEN),)
    assert [address.written for address in addresses(found)] == [HIDDEN]


numbers = st.integers(-5, 60) | st.integers()
entities = st.lists(
    st.builds(
        lambda kind, offset, length, url: {"type": kind, "offset": offset, "length": length, "url": url},
        st.sampled_from(["url", "text_link", "bold"]),
        numbers,
        numbers,
        st.sampled_from([HIDDEN, "a.example", "x", ""]),
    ),
    max_size=8,
)


@given(
    text=st.text(max_size=40) | faces | st.from_regex(r"(x |a\.example |https://b\.example/\S? |🙂){0,6}"),
    marks=entities,
)
def test_entities_of_any_offset_and_length_are_read(text: str, marks: list[dict[str, Any]]) -> None:
    clamped = [
        entity | {name: max(-(2**63) + 1, min(entity[name], 2**63 - 1)) for name in ("offset", "length")}
        for entity in marks
    ]

    found = passage(text, *clamped)

    assert all(0 <= link.start < link.end <= len(text) for link in found.links)
    assert len(addresses(found)) <= len(found.links) + text.count("http")


@pytest.mark.parametrize("words", ["🙂a.example/", "x"])
def test_many_entities_over_a_long_text_are_fast(words: str) -> None:
    text = words * (400_000 // len(words)) + " "
    marks: list[Json] = [mark(offset, length) for offset in range(20_000) for length in (4_000, 10**6)]

    started = time.process_time()
    normalize_telegram({"text": text, "entities": marks, "source": {"chat_id": 1, "message_id": 1}})

    assert time.process_time() - started < 5
