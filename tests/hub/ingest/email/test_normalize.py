"""A parsed mail: its required fields, its keys, and the messages about invalid fields."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import cast

import pytest

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.errors import InvalidInput
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.normalize.text import sha256_hex
from onceward.hub.ingest.payload import Payload

NEWSLETTER: dict[str, Json] = {
    "raw_text": "Hello,\n\n  this is   the week.\n",
    "from": "The Sender <Sender@Example.com>",
    "subject": "Weekly update",
    "source": {"message_id": "<week-7@example.com>", "date": "2026-02-17T12:00:00-06:00"},
}
RAW = (
    "From: The Sender <Sender@Example.com>\nSubject: Weekly update\nMessage-ID: <week-7@example.com>\n"
    "Date: Tue, 17 Feb 2026 12:00:00 -0600\n\nHello,\n\n  this is   the week.\n"
)
COLUMNS = [
    "source", "content_type", "title", "author", "capture_text", "clean_text", "content_hash", "external_ref", "metadata",
    "idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary",
    "reasons",
]  # fmt: skip
NAMES = [
    "source_time", "message_id", "in_reply_to", "references", "from", "from_addr", "to", "cc", "date", "list_id",
    "subject_base", "body_type", "attachments",
]  # fmt: skip


def form(**changes: Json) -> dict[str, Json]:
    """The newsletter with some fields changed; None removes a field."""
    return {name: value for name, value in {**NEWSLETTER, **changes}.items() if value is not None}


def metadata(payload: Payload) -> dict[str, Json]:
    return cast("dict[str, Json]", payload["metadata"])


def keys(payload: Payload) -> tuple[Json, Json, Json]:
    return (
        payload["idempotency_policy_key"],
        payload["idempotency_key_primary"],
        payload["idempotency_key_secondary"],
    )


def refusal(sent: Mapping[str, Json]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        normalize_email(sent)
    return caught.value


def test_a_newsletter_is_identified_by_its_message_id_and_by_sender_subject_and_day() -> None:
    payload = normalize_email(NEWSLETTER)

    assert keys(payload) == (
        "email_newsletter_v1",
        "<week-7@example.com>",
        "13ac7956ddc1bf2f5676a1a2b2f5933923420f0854f34e663848d9e78d5ecf0e",
    )
    assert (payload["source"], payload["content_type"]) == ("email", "newsletter")
    assert payload["capture_text"] == NEWSLETTER["raw_text"]
    assert payload["clean_text"] == "Hello, this is the week."
    assert payload["content_hash"] == sha256_hex("Hello, this is the week.")
    assert (payload["title"], payload["author"]) == ("Weekly update", "The Sender")
    assert payload["external_ref"] == "<week-7@example.com>"
    assert payload.keys().isdisjoint({"url", "url_canonical"})
    assert metadata(payload)["source_time"] == "2026-02-17T18:00:00.000000Z"
    assert metadata(payload)["from_addr"] == "sender@example.com"
    assert metadata(payload)["subject_base"] == "weekly update"


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        pytest.param(NEWSLETTER, "newsletter", id="form"),
        pytest.param(form(subject="Re: Weekly update"), "correspondence_thread", id="reply"),
        pytest.param({"raw_message": RAW}, "newsletter", id="raw text"),
        pytest.param({"raw_text": "", "source": {"message_id": "x"}}, "newsletter", id="almost nothing"),
        pytest.param({"raw_text": "", "subject": "re: x"}, "correspondence_thread", id="a subject alone"),
    ],
)
def test_payloads_and_metadata_have_their_fields_in_one_order(sent: Mapping[str, Json], kind: str) -> None:
    payload = normalize_email(sent)

    assert payload["content_type"] == kind
    assert list(payload) == [name for name in COLUMNS if name in payload]
    assert list(metadata(payload)) == [name for name in NAMES if name in metadata(payload)]


def test_all_forms_of_one_mail_give_the_same_entry() -> None:
    raw = RAW.encode()
    of_bytes = normalize_mail(raw)

    assert normalize_email({"raw_message": RAW}) == of_bytes
    assert normalize_email({"raw_message_base64": base64.b64encode(raw).decode()}) == of_bytes
    assert normalize_email({"raw_message_base64": base64.urlsafe_b64encode(raw).decode().rstrip("=")}) == of_bytes
    of_form = normalize_email(NEWSLETTER)
    assert keys(of_form) == keys(of_bytes)
    for same in ("clean_text", "content_hash", "title", "author", "external_ref"):
        assert of_form[same] == of_bytes[same]
    assert metadata(of_form)["source_time"] == metadata(of_bytes)["source_time"]


def test_a_raw_mail_sent_as_text_is_read_as_text() -> None:
    """The sender has decoded it, so its charset header no longer applies."""
    sent = "Message-ID: <a@b>\nSubject: Grüße\nContent-Type: text/plain; charset=iso-8859-1\n\nschöne Grüße\n"

    payload = normalize_email({"raw_message": sent})

    assert (payload["title"], payload["clean_text"]) == ("Grüße", "schöne Grüße")


def test_encoded_parts_of_a_mail_sent_as_text_use_their_own_charset() -> None:
    head = "Message-ID: <a@b>\nContent-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: "

    payload = normalize_email({"raw_message": f"{head}quoted-printable\n\nGr=FC=DFe"})

    assert payload["clean_text"] == "Grüße"


def test_the_sender_and_subject_in_source_are_not_used() -> None:
    source: Json = {"from_addr": "other@example.com", "subject": "Re: other", "message_id": "a@b", "date": "2026-02-17"}

    without = normalize_email({"raw_text": "x", "source": source})
    beside = normalize_email(form(source=source))

    assert without.keys().isdisjoint({"title", "author"})
    assert without["idempotency_key_secondary"] is None
    assert without["content_type"] == "newsletter"
    assert beside["idempotency_key_secondary"] == normalize_email(NEWSLETTER)["idempotency_key_secondary"]
    assert normalize_email(form(source={**cast("dict[str, Json]", source), "system": "other"}))["source"] == "email"


def test_other_fields_in_source_are_not_used_and_the_reasons_say_so() -> None:
    payload = normalize_email(form(source={"message_id": "a@b", "messageId": "c@d", "label": {"x": 1}}))

    assert payload["idempotency_key_primary"] == "<a@b>"
    assert "Not used: source.label, source.messageId." in cast("list[Json]", payload["reasons"])


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"subject": None}, "subject"),
        ({"subject": "Re: [News] "}, "subject"),
        ({"from": None}, "sender"),
        ({"from": "nobody"}, "sender"),
        ({"source": {"message_id": "week-7@example.com"}}, "date"),
        ({"source": {"message_id": " <week-7@example.com> ", "date": "soon"}}, "date"),
    ],
)
def test_a_newsletter_that_lacks_a_part_loses_only_its_secondary_key(changes: dict[str, Json], missing: str) -> None:
    payload = normalize_email(form(content_type="newsletter", **changes))

    assert keys(payload) == ("email_newsletter_v1", "<week-7@example.com>", None)
    assert cast("list[str]", payload["reasons"])[1].endswith(f"Missing or unreadable: {missing}.")


def test_an_unidentifiable_newsletter_is_refused_with_everything_it_lacks() -> None:
    error = refusal({**form(subject="[x]", content_type="newsletter", source={"date": "soon"}), "from": "nobody"})

    assert error.fields == (
        ("source.message_id", "is missing"),
        ("from", "has no address"),
        ("subject", "has only prefixes and tags"),
        ("source.date", "is not a valid date"),
    )


def test_a_newsletter_without_message_id_has_only_its_secondary_key() -> None:
    payload = normalize_email(form(source={"date": 1771351200}))

    assert keys(payload) == ("email_newsletter_v1", None, normalize_email(NEWSLETTER)["idempotency_key_secondary"])
    assert "external_ref" not in payload
    assert metadata(payload)["date"] == metadata(payload)["source_time"] == "2026-02-17T18:00:00.000000Z"


def test_a_backfilled_form_always_has_a_reference_and_its_own_time() -> None:
    bare: dict[str, Json] = {"raw_text": "one", "subject": "Re: Lunch"}
    raw: dict[str, Json] = {"raw_message": "Subject: Re: Lunch\n\none"}

    filled = [normalize_email(sent, backfill=True) for sent in (bare, {**bare, "raw_text": "two"}, raw)]

    assert len({payload["external_ref"] for payload in filled}) == 3
    assert filled[2] == normalize_mail(b"Subject: Re: Lunch\n\none", backfill=True)
    assert {metadata(payload)["source_time"] for payload in filled} == {"1970-01-01T00:00:00.000000Z"}
    assert "external_ref" not in normalize_email(bare)
    assert normalize_email(form(), backfill=True) == normalize_email(form())


def test_headers_fill_in_what_source_lacks() -> None:
    headers: Json = {
        "Message-ID": "<h@example.com>",
        "DATE": ["Tue, 17 Feb 2026 12:00:00 -0600", "Wed, 18 Feb 2026 12:00:00 -0600"],
        "to": "Ann <ann@example.com>, bob@example.com",
        "List-Id": "News <news.example.com>",
        "X-Nothing": None,
    }

    payload = normalize_email(form(source=None, headers=headers))

    assert keys(payload)[1:] == ("<h@example.com>", normalize_email(NEWSLETTER)["idempotency_key_secondary"])
    assert metadata(payload)["to"] == ["Ann <ann@example.com>", "bob@example.com"]
    assert metadata(payload)["list_id"] == "News <news.example.com>"
    assert metadata(normalize_email(form(headers=headers)))["message_id"] == "<week-7@example.com>"


def test_sender_and_subject_are_read_from_the_headers_if_the_form_has_none() -> None:
    headers: Json = {"From": "Ann <ann@example.com>", "Subject": "=?utf-8?q?Gr=C3=BC=C3=9Fe?="}

    payload = normalize_email(form(**{"from": None, "subject": None}, headers=headers))
    parsed = normalize_email(form(**{"from": "bob@example.com", "subject": "Hello"}, headers=headers))

    assert (payload["title"], payload["author"]) == ("Grüße", "Ann")
    assert (parsed["title"], parsed["author"]) == ("Hello", "bob@example.com")


def test_encoded_words_of_an_undecoded_header_are_decoded() -> None:
    payload = normalize_email(form(subject="=?utf-8?q?Weekly?=\n =?utf-8?q?_update?=", **{"from": RAW_SENDER}))

    assert (payload["title"], payload["author"]) == ("Weekly update", "Müller, Ann")
    assert metadata(payload)["from_addr"] == "sender@example.com"


RAW_SENDER = "=?utf-8?q?M=C3=BCller=2C_Ann?= <sender@example.com>"


def test_the_callers_title_and_metadata_take_precedence() -> None:
    given: Json = {"from": "me", "labels": {"a": [1, None]}, "source_time": "2026-01-01T00:00:00Z"}

    payload = normalize_email(form(title=" Mine ", metadata=given))

    assert payload["title"] == "Mine"
    assert metadata(payload)["from"] == "me"
    assert metadata(payload)["labels"] == {"a": [1, None]}
    assert metadata(payload)["source_time"] == "2026-01-01T00:00:00.000000Z"
    assert metadata(payload)["message_id"] == "<week-7@example.com>"


deep: Json = "x"
for _ in range(2000):
    deep = [deep]


@pytest.mark.parametrize(
    ("sent", "field", "why"),
    [
        ({}, "raw_text", "is missing"),
        (form(raw_text=None), "raw_text", "is missing"),
        (form(raw_text=5), "raw_text", "must be a string"),
        (form(raw_text="a\0b"), "raw_text", "must not contain a NUL character"),
        (form(raw_text="\ud800"), "raw_text", "must not contain a lone surrogate (half of a character)"),
        (form(subject=["x"]), "subject", "must be a string"),
        ({**NEWSLETTER, "from": {"address": "a@b"}}, "from", "must be a string"),
        (form(source="x"), "source", "must be an object"),
        (form(source={"message_id": 5}), "source.message_id", "must be a string"),
        (form(source={"date": 1.5}), "source.date", "must be a string"),
        (form(source={"date": True}), "source.date", "must be a string"),
        (form(source={"references": ["<a@b>", 5]}), "source.references[1]", "must be a string"),
        (form(source={"received_at": "soon"}), "source.received_at", "must be a time"),
        (form(headers=["x"]), "headers", "must be an object"),
        (form(headers={"List-Id": 5}), "headers.List-Id", "must be a string"),
        (form(headers={"To": ["a@b", None]}), "headers.To[1]", "must be a string"),
        (form(content_type="link"), "content_type", "must be one of newsletter, correspondence, correspondence_thread"),
        (form(thread_policy="email_newsletter_v1"), "thread_policy", "must be one of email_correspondence_thread_v1"),
        (form(title=5), "title", "must be a string"),
        (form(metadata=[]), "metadata", "must be an object"),
        (form(metadata={"a": {"b\0": 1}}), "metadata", "must not contain a NUL character"),
        (form(metadata={"a": ["\udfff"]}), "metadata", "must not contain a lone surrogate"),
        (form(metadata={"a": float("inf")}), "metadata", "must not contain NaN or infinity"),
        (form(metadata={"a": deep}), "metadata", "is nested deeper than 64 levels"),
        (form(metadata={"source_time": "soon"}), "metadata.source_time", "must be a time"),
        (form(body="x"), "body", "is not an allowed field"),
        ({"raw_message": RAW, "raw_text": "x"}, "raw_text", "is not an allowed field"),
        ({"raw_message": RAW, "raw_message_base64": "eA=="}, "raw_message_base64", "is not an allowed field"),
        ({"raw_message_base64": "a"}, "raw_message_base64", "is not valid base64"),
        ({"raw_message_base64": "é"}, "raw_message_base64", "is not valid base64"),
        ({"raw_message_base64": "QUJD!!!!"}, "raw_message_base64", "is not valid base64"),
        ({"raw_message": {}}, "raw_message", "must be a string"),
        (form(subject="Re: [x]", content_type="correspondence"), "subject", "is empty or has only prefixes and tags"),
        (form(subject=None, content_type="correspondence"), "subject", "is empty or has only prefixes and tags"),
        (form(source=None), "source.message_id", "is missing"),
    ],
    ids=range(35),
)
def test_an_invalid_field_is_refused_by_its_name(sent: Mapping[str, Json], field: str, why: str) -> None:
    error = refusal(sent)

    assert error.fields[0][0] == field
    assert error.fields[0][1].startswith(why)


def test_unknown_fields_are_named_up_to_a_limit() -> None:
    error = refusal(form(zebra=1, apple=2))
    many = refusal({f"{number:04}{'x' * 1000}": 1 for number in range(1000)})

    assert [name for name, _ in error.fields] == ["apple", "zebra"]
    assert (len(str(many)) < 1000, len(many.fields)) == (True, 5)
    assert compact([list(field) for field in many.fields])
