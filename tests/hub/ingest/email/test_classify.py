"""Newsletters and correspondence are distinguished by their headers; threads are identified by one of two policies."""

from __future__ import annotations

from typing import cast

import pytest

from onceward.core.canonical import Json
from onceward.errors import InvalidInput
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.normalize.text import sha256_hex

V1, V2 = "email_correspondence_thread_v1", "email_correspondence_thread_v2"


def mail(*lines: str) -> bytes:
    return "\n".join(["Message-ID: <self@example.com>", *lines, "", "text"]).encode()


def kind_and_reason(*lines: str, content_type: str | None = None) -> tuple[Json, str]:
    payload = normalize_mail(mail(*lines), content_type=content_type)
    return payload["content_type"], cast("list[str]", payload["reasons"])[0]


LIST_HEADERS = (
    "List-Id: News <news.example.com>",
    "LIST-UNSUBSCRIBE: <https://example.com/u>",
    "List-Unsubscribe-Post: List-Unsubscribe=One-Click",
    "List-Post: NO",
    "List-Archive: <https://example.com/archive>",
    "List-Help: <mailto:help@example.com>",
    "List-Owner: <mailto:owner@example.com>",
    "List-Subscribe: <https://example.com/s>",
    "Mailing-List: list news@example.com; contact owner@example.com",
    "X-Mailing-List: <news@example.com> archive/latest/1",
    "Precedence: bulk",
    "Precedence: List",
)


@pytest.mark.parametrize("line", LIST_HEADERS)
def test_a_list_header_makes_even_a_reply_a_newsletter(line: str) -> None:
    name = line.partition(":")[0]

    kind, reason = kind_and_reason("Subject: Weekly", line)
    discussed, why = kind_and_reason("Subject: Re: Weekly", "In-Reply-To: <a@b>", line)

    assert (kind, discussed) == ("newsletter", "newsletter")
    assert f"the header {name}".lower() in reason.lower()
    assert why.endswith(", which takes precedence over a subject that begins with Re:.")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["Subject: Re: Lunch"], "a subject that begins with Re:"),
        (["Subject: RE:Lunch"], "a subject that begins with Re:"),
        (["Subject: [Team] re: Lunch"], "a subject that begins with Re:"),
        (["Subject: Fwd: Re: Lunch"], "a subject that begins with Re:"),
        (["Subject: =?utf-8?q?Re=3A_Lunch?="], "a subject that begins with Re:"),
        (["Subject: Fwd : RE : Lunch"], "a subject that begins with Re:"),
        (["Subject: =?utf-8?q?Re=EF=BC=9ALunch?="], "a subject that begins with Re:"),
        (["Subject: Lunch", "In-Reply-To: <a@b>"], "the header In-Reply-To"),
        (["Subject: Lunch", "references:", " <a@b>"], "the header References"),
        (["Subject: Lunch", "List-Id: ", "Precedence: junk", "In-Reply-To: <a@b>"], "the header In-Reply-To"),
    ],
    ids=range(10),
)
def test_a_reply_is_correspondence(lines: list[str], reason: str) -> None:
    assert kind_and_reason(*lines) == ("correspondence_thread", f"It is correspondence because it has {reason}.")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["Subject: Lunch"],
        ["Subject: Fwd: Lunch"],
        ["Subject: FW: [x] fwd: Lunch"],
        ["Subject: Fwd : Lunch"],
        ["Subject: Re lunch: when"],
        ["Subject: Really: Lunch"],
        ["Subject: Lunch re: money"],
        ["Subject: Lunch", "In-Reply-To: ", "References:\t"],
    ],
    ids=range(9),
)
def test_any_other_mail_is_a_newsletter(lines: list[str]) -> None:
    assert kind_and_reason(*lines) == (
        "newsletter",
        "It is a newsletter because nothing marks it as a reply.",
    )


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        ("newsletter", "newsletter"),
        ("correspondence", "correspondence_thread"),
        (" Correspondence", "correspondence_thread"),
        ("correspondence_thread", "correspondence_thread"),
    ],
)
@pytest.mark.parametrize("line", ["List-Id: <x.example.com>", "In-Reply-To: <a@b>"])
def test_the_callers_content_type_takes_precedence(chosen: str, kind: str, line: str) -> None:
    assert kind_and_reason("Subject: Lunch", line, content_type=chosen)[0] == kind


@pytest.mark.parametrize("chosen", ["", "link", "thread"])
def test_the_caller_cannot_choose_a_type_that_is_not_for_mail(chosen: str) -> None:
    with pytest.raises(InvalidInput, match="content_type must be one of newsletter, correspondence, "):
        normalize_mail(mail("Subject: x"), content_type=chosen)


# Threads.


def test_a_thread_is_identified_by_its_subject_alone() -> None:
    asked = normalize_mail(mail("Subject: [Team] Lunch  today", "From: a@example.com"), content_type="correspondence")
    answered = normalize_mail(mail("Subject: Re: FW: lunch TODAY", "From: b@example.com", "Cc: c@example.com"))

    for payload in (asked, answered):
        assert payload["idempotency_policy_key"] == V1
        assert payload["idempotency_key_primary"] == sha256_hex("lunch today")
        assert payload["idempotency_key_secondary"] is None


@pytest.mark.parametrize("subject", [[], ["Subject:"], ["Subject: Re: Fwd: [x] [y]"]], ids=range(3))
def test_a_thread_without_a_subject_is_refused(subject: list[str]) -> None:
    with pytest.raises(
        InvalidInput, match="subject is empty or has only prefixes and tags, so it cannot identify a thread"
    ):
        normalize_mail(mail(*subject, "In-Reply-To: <a@b>"))


@pytest.mark.parametrize(
    ("lines", "root"),
    [
        (["In-Reply-To: <c@d>", "References: <a@b> <c@d>"], "<a@b>"),
        (["In-Reply-To: Your note of Monday <c@d>"], "<c@d>"),
        (["Subject: Re: x"], "<self@example.com>"),
    ],
    ids=range(3),
)
def test_on_request_the_second_thread_policy_uses_the_first_mail(lines: list[str], root: str) -> None:
    payload = normalize_mail(mail(*lines), content_type="correspondence", thread_policy=V2)

    assert payload["idempotency_policy_key"] == V2
    assert payload["idempotency_key_primary"] == sha256_hex(root)


def test_the_second_policy_can_be_requested_in_every_form() -> None:
    raw = mail("Subject: Re: Lunch", "References: <a@b>\n <c@d>", "In-Reply-To: <c@d>").decode()
    form: dict[str, Json] = {
        "raw_text": "text",
        "subject": "Re: Lunch",
        "source": {"message_id": "self@example.com", "references": ["<a@b>", "<c@d>"], "in_reply_to": "<c@d>"},
        "thread_policy": V2,
    }

    of_raw = normalize_email({"raw_message": raw, "thread_policy": V2})
    of_form = normalize_email(form)

    assert of_raw["idempotency_key_primary"] == of_form["idempotency_key_primary"] == sha256_hex("<a@b>")
    for payload in (of_raw, of_form):
        found = cast("dict[str, Json]", payload["metadata"])
        assert (found["references"], found["in_reply_to"]) == (["<a@b>", "<c@d>"], "<c@d>")


def test_the_thread_policy_does_not_apply_to_newsletters() -> None:
    payload = normalize_mail(mail("Subject: Weekly", "List-Id: <x>"), thread_policy=V2)

    assert payload["idempotency_policy_key"] == "email_newsletter_v1"
