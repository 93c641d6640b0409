"""The keys of each policy, and refusals of messages that cannot be identified."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onceward.errors import InvalidInput
from onceward.hub.ingest.normalize import keys
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
from onceward.hub.ingest.normalize.text import sha256_hex

NEWSLETTER_HASH = "13ac7956ddc1bf2f5676a1a2b2f5933923420f0854f34e663848d9e78d5ecf0e"
DATE = "Tue, 17 Feb 2026 10:00:00 -0600"

IDS: dict[str, tuple[int | str, str]] = {
    "a number": (5, "5"),
    "a text": ("5", "5"),
    "blanks around": (" 5\n", "5"),
    "zero": (0, "0"),
    "zero as text": ("0", "0"),
    "zeros before": ("005", "5"),
    "a channel": (-1001234567890, "-1001234567890"),
    "a channel as text": ("-1001234567890", "-1001234567890"),
    "the largest": (2**63 - 1, "9223372036854775807"),
    "the smallest": (-(2**63), "-9223372036854775808"),
}

NO_IDS: dict[str, Any] = {
    "nothing": None,
    "empty": "",
    "blank": " ",
    "true": True,
    "false": False,
    "a fraction": 5.0,
    "a fraction as text": "5.0",
    "a plus": "+5",
    "two signs": "--5",
    "a blank inside": "5 6",
    "a low line": "5_6",
    "letters": "abc",
    "a name": "@channel",
    "digits of another kind": "\u0665",
    "a list": [5],
    "an object": {"id": 5},
    "too large": 2**63,
    "too small": -(2**63) - 1,
    "huge": 10**5000,
    "huge as text": "9" * 5000,
    "half a character": "\ud800",
}

MESSAGE_IDS: dict[str, tuple[str | None, str | None]] = {
    "nothing": (None, None),
    "empty": ("", None),
    "blank": (" \n", None),
    "empty brackets": ("<>", None),
    "blank brackets": ("< >", None),
    "in brackets": ("<a@b.example>", "<a@b.example>"),
    "without brackets": ("a@b.example", "<a@b.example>"),
    "blanks around": (" \r\n <a@b.example>\t", "<a@b.example>"),
    "blanks inside the brackets": ("< a@b.example >", "<a@b.example>"),
    "folded": ("<a-long-one\r\n @b.example>", "<a-long-one@b.example>"),
    "only opened": ("<a@b.example", "<a@b.example>"),
    "only closed": ("a@b.example>", "<a@b.example>"),
    "doubled": ("<<a@b.example>>", "<a@b.example>"),
    "an empty one first": ("<> <a@b.example>", "<a@b.example>"),
    "more than one": ("<a@b.example> <c@d.example>", "<a@b.example>"),
    "words before": ("Your message of Tuesday <a@b.example>", "<a@b.example>"),
    "letters keep their case": ("<Ab@C.example>", "<Ab@C.example>"),
    "no at": ("<20260217>", "<20260217>"),
}

SENDERS: dict[str, tuple[str | None, str | None]] = {
    "nothing": (None, None),
    "empty": ("", None),
    "no address": ("Jane Doe", None),
    "empty brackets": ("Jane <>", None),
    "half of one": ("jane@ @b.example @", None),
    "bare": ("Sender@Example.com", "sender@example.com"),
    "blanks around": (" \tsender@example.com\r\n", "sender@example.com"),
    "in brackets": ("<sender@example.com>", "sender@example.com"),
    "with a name": ("Jane Doe <Sender@Example.com>", "sender@example.com"),
    "with a quoted name": ('"Doe, Jane <x@y.example>" <sender@example.com>', "sender@example.com"),
    "with quotes in the name": (r'"Jane \"x@y.example\" Doe" <sender@example.com>', "sender@example.com"),
    "with a name that is an address": ("x@y.example <sender@example.com>", "sender@example.com"),
    "with a comma in the name": ("Doe, Jane <sender@example.com>", "sender@example.com"),
    "with a comment": ("sender@example.com (x@y.example)", "sender@example.com"),
    "with a comment first": ("(x@y.example, z) sender@example.com", "sender@example.com"),
    "words behind": ("sender@example.com via Lists b@example.com", "sender@example.com"),
    "more than one": ("a@example.com, b@example.com", "a@example.com"),
    "more than one with names": ("A <a@example.com>; B <b@example.com>", "a@example.com"),
    "a group": ("Friends: a@example.com, b@example.com;", "a@example.com"),
    "an address of the web": ("<mailto:sender@example.com>", "sender@example.com"),
    "a route": ("<@a.example,@b.example:sender@example.com>", "sender@example.com"),
    "single quotes": ("'sender@example.com'", "sender@example.com"),
    "a quote in the name of the mailbox": ("o'hara@example.com", "o'hara@example.com"),
    "a quoted mailbox": ('"Jane Doe"@example.com', '"jane doe"@example.com'),
    "a quote left open": ('"Jane <sender@example.com>', "sender@example.com"),
    "a quote left open behind": ('Jane <sender@example.com> "', "sender@example.com"),
    "a stroke for a host": ("jane@\\ sender@example.com", "sender@example.com"),
    "an empty bracket behind": ("sender@example.com <>", "sender@example.com"),
    "letters of the world": ("Ü <Üser@Exämple.com>", "üser@exämple.com"),
    "NUL and half a character": ("a\0\ud800@b.example", "a\0\ud800@b.example"),
}


def refusal(call: Any, *arguments: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize(("sent", "written"), IDS.values(), ids=IDS)
def test_a_thought_is_identified_by_its_chat_and_its_message(sent: int | str, written: str) -> None:
    assert thought_keys(sent, 7, "x").primary == f"tg:{written}:7"
    assert thought_keys(-7, sent, "x").primary == f"tg:-7:{written}"


@pytest.mark.parametrize("sent", NO_IDS.values(), ids=NO_IDS)
def test_a_thought_without_both_ids_is_refused_with_the_name_of_the_missing_one(sent: Any) -> None:
    assert refusal(thought_keys, sent, 1, "x").fields[0][0] == "source.chat_id"
    assert refusal(thought_keys, 1, sent, "x").fields[0][0] == "source.message_id"


def test_a_thought_with_text_has_a_hash_of_it_as_the_secondary_key() -> None:
    assert thought_keys(1, 2, "a b") == keys.EntryKeys("telegram_thought_v1", "tg:1:2", sha256_hex("a b"))
    assert thought_keys(1, 2, "") == keys.EntryKeys("telegram_thought_v1", "tg:1:2", None)


def test_a_link_is_identified_by_its_url_and_by_its_url_without_tracking() -> None:
    known = link_keys("https://Example.com/Path/?utm_source=x&b=2&a=1#frag")

    assert known == keys.EntryKeys(
        "telegram_link_v1",
        "https://example.com/Path/?utm_source=x&b=2&a=1",
        sha256_hex("https://example.com/Path/?b=2&a=1"),
    )


def test_links_that_differ_in_tracking_share_only_the_secondary_key() -> None:
    one, other = link_keys("https://a.example/?b=1&gclid=1"), link_keys("https://a.example/?b=1#c")

    assert one.secondary == other.secondary
    assert one.primary != other.primary


@pytest.mark.parametrize(
    "sent", ["", "example.com", "ftp://a.example/", "javascript:x", "https://", "https://\ud800"], ids=ascii
)
def test_an_invalid_web_address_is_refused(sent: str) -> None:
    assert refusal(link_keys, sent).fields[0][0] == "url"


def test_a_newsletter_is_identified_by_its_id_and_by_sender_subject_and_day() -> None:
    known = newsletter_keys(" a@b.example ", '"Doe, J" <Sender@Example.com>', "Re: [List]  Weekly Update", DATE)

    assert known == keys.EntryKeys("email_newsletter_v1", "<a@b.example>", NEWSLETTER_HASH)
    assert sha256_hex("sender@example.com|weekly update|2026-02-17") == NEWSLETTER_HASH


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ({"from_addr": None}, ("from", "is missing")),
        ({"from_addr": "Jane"}, ("from", "has no address")),
        ({"subject": None}, ("subject", "is missing")),
        ({"subject": "Re: [x]"}, ("subject", "has only prefixes and tags")),
        ({"date": None}, ("source.date", "is missing")),
        ({"date": " "}, ("source.date", "is missing")),
        ({"date": "soon"}, ("source.date", "is not a valid date")),
    ],
    ids=str,
)
def test_a_newsletter_that_lacks_a_part_loses_only_its_secondary_key(
    missing: dict[str, str | None], reason: tuple[str, str]
) -> None:
    parts = {"from_addr": "sender@example.com", "subject": "Weekly", "date": DATE} | missing

    assert newsletter_keys("<a@b.example>", **parts) == keys.EntryKeys("email_newsletter_v1", "<a@b.example>", None)
    refused = refusal(lambda: newsletter_keys(" ", **parts))
    assert refused.fields == (("source.message_id", "is missing"), reason)
    assert str(refused).endswith(f": source.message_id is missing, {' '.join(reason)}")


def test_a_newsletter_without_an_id_has_its_secondary_key() -> None:
    assert newsletter_keys(None, "sender@example.com", "Weekly Update", 1_771_340_400) == keys.EntryKeys(
        "email_newsletter_v1", None, NEWSLETTER_HASH
    )


def test_a_long_id_is_stored_as_its_hash() -> None:
    long = f"<{'a' * 512}>"

    assert newsletter_keys(long, None, None, None).primary == f"sha256:{sha256_hex(long)}"
    assert (
        link_keys(f"https://a.example/{'b' * 512}").primary == f"sha256:{sha256_hex('https://a.example/' + 'b' * 512)}"
    )


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("", True),
        ("a" * 512, True),
        ("a" * 513, False),
        ("ä" * 256, True),
        ("ä" * 256 + "a", False),
        ("\ud800" * 171, False),
    ],
    ids=["empty", "512 bytes", "513 bytes", "512 bytes of two", "513 bytes of two", "513 bytes of halves"],
)
def test_a_key_of_up_to_512_bytes_is_stored_unchanged(key: str, kept: bool) -> None:
    assert stored(key) == (key if kept else f"sha256:{sha256_hex(key)}")
    assert stored(stored(key)) == stored(key)


def test_a_thread_is_identified_by_the_base_of_its_subject() -> None:
    known = keys.EntryKeys("email_correspondence_thread_v1", sha256_hex("plan"), None)

    assert thread_keys("Plan") == thread_keys("RE: [x] fwd:  PLAN ") == known


@pytest.mark.parametrize("subject", [None, "", " ", "Re:", "[x]", "Re: [x] Fwd:"])
def test_a_thread_without_a_subject_is_refused(subject: str | None) -> None:
    assert refusal(thread_keys, subject).fields[0][0] == "subject"


def test_the_first_mail_of_a_thread_and_all_replies_share_its_key() -> None:
    root = thread_v2_keys([], None, "<root@a.example>", "Plan")

    assert root == keys.EntryKeys("email_correspondence_thread_v2", sha256_hex("<root@a.example>"), None)
    assert thread_v2_keys([], "<root@a.example>", "<b@b.example>", "Re: Plan") == root
    assert thread_v2_keys(["<root@a.example>"], "<root@a.example>", "<b@b.example>", "AW: Plan") == root
    assert thread_v2_keys(["root@a.example ", "<b@b.example>"], "<b@b.example>", "<c@b.example>", "Another") == root
    assert thread_v2_keys(["", "<>", "<root@a.example>"], "<b@b.example>", "<c@b.example>", None) == root


def test_two_threads_with_one_subject_have_two_keys() -> None:
    assert thread_v2_keys([], None, "<a@a.example>", "Plan") != thread_v2_keys([], None, "<b@a.example>", "Plan")


def test_a_mail_without_any_id_is_identified_by_the_subject_of_its_thread() -> None:
    known = thread_v2_keys([], None, None, "Plan")

    assert thread_v2_keys([" "], "<>", "", "AW: Re[2]: Plan (fwd)") == known
    assert thread_v2_keys([], None, "<root@a.example>", "Plan") != known


def test_a_subject_that_looks_like_an_id_is_not_one() -> None:
    assert thread_v2_keys([], None, None, "<a@b.example>") != thread_v2_keys([], None, "<a@b.example>", None)


@pytest.mark.parametrize("subject", [None, "", "Re: AW:", "(fwd)"])
def test_a_mail_with_neither_ids_nor_a_subject_is_refused(subject: str | None) -> None:
    assert refusal(thread_v2_keys, [], None, None, subject).fields[0][0] == "subject"


@pytest.mark.parametrize(("sent", "written"), MESSAGE_IDS.values(), ids=MESSAGE_IDS)
def test_a_message_id_is_in_angle_brackets(sent: str | None, written: str | None) -> None:
    assert message_id(sent) == written


@pytest.mark.parametrize(("sent", "written"), SENDERS.values(), ids=SENDERS)
def test_the_sender_is_the_first_address(sent: str | None, written: str | None) -> None:
    assert from_addr(sent) == written


HUGE = {
    "quotes": '"\\' * 500_000 + "@",
    "escaped quotes": '\\"' * 500_000 + "@\\",
    "a comment across quotes": '"(@"@)' + '\\"' * 500_000 + "@\\",
    "comments": "(" * 1_000_000 + "@",
    "brackets": "<" * 1_000_000 + "@",
    "commas": "," * 1_000_000 + "@",
    "letters": "a" * 1_000_000 + "@",
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_header_takes_linear_time(name: str) -> None:
    """A parser that starts again at each quote or bracket would take hours."""
    assert from_addr(HUGE[name]) is None
    assert message_id(HUGE[name]) is not None


def test_keys_are_immutable() -> None:
    known: Any = thread_keys("Plan")

    with pytest.raises(dataclasses.FrozenInstanceError):
        known.primary = "x"
