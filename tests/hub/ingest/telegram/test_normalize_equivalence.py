"""One message is one entry, whether a bot received it or Telegram Desktop exported it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.hub.ingest.telegram.message_forms import CHATS, MEDIA, Part, SampleMessage, bot_api_form, export_form

from onceward.core.canonical import Json
from onceward.hub.ingest.telegram import normalize_exported, normalize_telegram

LINK = Part("https://a.example/?utm_source=t&b=1", "link")
HIDDEN = Part("here", "text_link", "https://b.example/x")
THOUGHT = SampleMessage((Part("A thought"),))

# Links, words that look like links, and characters that are hard to count.
words = st.text(st.sampled_from("ab .,:/()[]\n\t\u00a0\u00e4\u0308\u4e2d\u200d🙂👩🏽"), min_size=1, max_size=12)
urls = st.sampled_from([
    "https://a.example/?utm_source=t&b=1", "http://b.example/(x)", "c.example/path", "www.d.example", "notes.md",
    "HTTPS://E.example", "https://e.example/#frag", "ftp://f.example/",
])  # fmt: skip
parts = st.one_of(
    words.map(Part),
    urls.map(Part),
    urls.map(lambda url: Part(url, "link")),
    st.builds(Part, words, st.just("text_link"), urls.filter(lambda url: "://" in url)),
    st.builds(Part, words, st.sampled_from(["bold", "mention", "hashtag", "code"])),
)
names = st.text(st.sampled_from("ABC abc\u00e9🙂"), min_size=1, max_size=8).filter(str.strip)
messages = st.builds(
    SampleMessage,
    parts=st.lists(parts, max_size=5).map(tuple),
    chat_kind=st.sampled_from(list(CHATS)),
    chat_bare_id=st.integers(0, 2**52 - 1 - 10**12),
    message_id=st.integers(0, 2**31 - 1),
    date=st.integers(1_376_438_400, 2**32),
    edited=st.none() | st.integers(1_376_438_400, 2**32),
    first_name=names,
    last_name=st.just("") | names,
    sender_id=st.integers(1, 2**52 - 1),
    reply_to=st.none() | st.integers(1, 2**31 - 1),
    forwarded_from=st.none() | names,
    via_bot=st.none() | st.just("gif"),
    media=st.none() | st.sampled_from(list(MEDIA)),
)


@given(sample=messages)
@example(THOUGHT)
@example(replace(THOUGHT, parts=(Part("🙂🙂 "), HIDDEN, Part(" and "), LINK)))
@example(replace(THOUGHT, parts=(), media="photo"))
def test_both_forms_give_the_same_entry(sample: SampleMessage) -> None:
    received = normalize_telegram({"update_id": 1, "message": bot_api_form(sample)})

    assert normalize_exported(*export_form(sample)) == received


@given(sample=messages)
def test_an_old_export_gives_the_same_keys_and_text(sample: SampleMessage) -> None:
    received = normalize_telegram(bot_api_form(sample))

    old = normalize_exported(*export_form(sample, old=True))

    assert old is not None
    assert {name: value for name, value in old.items() if name != "metadata"} == {
        name: value for name, value in received.items() if name != "metadata"
    }
    assert source_time(old) == source_time(received)


@given(sample=messages, plain=st.booleans())
def test_the_plain_form_gives_the_same_keys(sample: SampleMessage, plain: bool) -> None:
    """Without `entities` only if the message has no link that is missing in its text."""
    message = bot_api_form(sample)
    text = message.get("text", message.get("caption", ""))
    sent: dict[str, Json] = {
        "text": text,
        "source": {"chat_id": str(message["chat"]["id"]), "message_id": message["message_id"]},
    }
    hidden = any(part.kind in {"link", "text_link"} for part in sample.parts)
    if not plain or hidden:
        sent["entities"] = message.get("entities", message.get("caption_entities", []))
    if not text.strip():
        return

    received = normalize_telegram(message)

    compared = ("content_type", "url", "clean_text", "external_ref", "idempotency_key_primary")
    ours = normalize_telegram(sent)
    assert [ours.get(name) for name in compared] == [received.get(name) for name in compared]


@pytest.mark.parametrize("kind", MEDIA)
def test_both_forms_describe_media_alike(kind: str) -> None:
    sample = replace(THOUGHT, parts=(), media=kind)

    found: Any = normalize_telegram(bot_api_form(sample))["metadata"]

    assert found["media"] == kind
    after: Any = normalize_exported(*export_form(sample))
    assert after["metadata"] == found


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("photo", None, None),
        ("document", "plan.pdf", None),
        ("animation", "cat.mp4", None),
        ("audio", "song.mp3", "Some Band\nA Song"),
        ("sticker", None, "🙂"),
        ("contact", None, "Grace H\n15550100200"),
        ("location", None, "52.52001, 13.40495"),
        ("venue", None, "The Pier\n1 Shore Road\n1.00000, -2.50000"),
        ("poll", None, "Soup?\nYes\nNo"),
        ("checklist", None, "Shopping\nBread\nSalt"),
        ("game", None, "Blocks"),
    ],
)
def test_media_are_described_as_a_reader_sees_them(kind: str, name: str | None, text: str | None) -> None:
    found: Any = normalize_telegram(bot_api_form(replace(THOUGHT, media=kind)))["metadata"]

    assert (found.get("media_name"), found.get("media_text")) == (name, text)


def source_time(payload: dict[str, Json]) -> Json:
    metadata = payload["metadata"]
    assert isinstance(metadata, dict)
    return metadata["source_time"]
