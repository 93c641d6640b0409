"""The parts of a raw mail: its text in any structure, its attachments, and its time."""

from __future__ import annotations

import hashlib
from typing import cast

import pytest

from onceward.core.canonical import Json
from onceward.core.json_text import compact
from onceward.hub.ingest.email.normalize import normalize_mail
from onceward.hub.ingest.payload import Payload

PDF = "JVBERi0xLjcKJcOkw7zDtsOfCg=="


def read(*lines: str) -> Payload:
    return normalize_mail("\n".join(["Message-ID: <a@example.com>", *lines]).encode())


def text_of(*lines: str) -> str:
    return cast("str", read(*lines).get("capture_text", "")).strip()


def found_in(payload: Payload, name: str) -> Json:
    return cast("dict[str, Json]", payload["metadata"]).get(name)


ALTERNATIVE = [
    "Content-Type: multipart/alternative; boundary=in",
    "",
    "--in",
    "Content-Type: text/plain; charset=utf-8",
    "Content-Transfer-Encoding: quoted-printable",
    "",
    "Guten Tag, sch=C3=B6ne Gr=",
    "=C3=BC=C3=9Fe",
    "--in",
    "Content-Type: text/html; charset=utf-8",
    "",
    "<p>Guten Tag, <b>Grüße</b></p>",
    "--in--",
]


def test_plain_text_is_preferred_to_html() -> None:
    payload = read(*ALTERNATIVE)

    assert payload["clean_text"] == "Guten Tag, schöne Grüße"
    assert (found_in(payload, "body_type"), found_in(payload, "attachments")) == ("text/plain", None)


def test_html_is_read_if_the_plain_text_is_blank() -> None:
    lines = [line if "=C3" not in line else " =20" for line in ALTERNATIVE]

    payload = read(*lines)

    assert payload["clean_text"] == "Guten Tag, Grüße"
    assert found_in(payload, "body_type") == "text/html"


def test_all_plain_parts_are_the_text_and_the_rest_is_attachments() -> None:
    payload = read(
        'Content-Type: multipart/mixed; boundary="out side"',
        "",
        "What stands before the first part is for programs without MIME.",
        "--out side",
        *ALTERNATIVE,
        "--out side  ",
        "Content-Type: application/pdf; name=wrong.pdf",
        "Content-Disposition: attachment;",
        " filename*0*=utf-8'de'Gr%C3%BC%C3%9Fe%20;",
        ' filename*1="1.pdf"',
        "Content-Transfer-Encoding: base64",
        "",
        PDF,
        "--out side",
        "Content-Type: text/plain; name=notes.txt",
        "",
        "not the text",
        "--out side",
        "Content-Disposition: attachment",
        "",
        "not the text either",
        "--out side",
        "Content-Type: message/rfc822",
        "",
        "Subject: inside",
        "",
        "nor this",
        "--out side",
        "",
        "-- ",
        "the list's own lines",
        "--out side--",
        "nobody sees this",
    )

    assert payload["clean_text"] == "Guten Tag, schöne Grüße -- the list's own lines"
    assert found_in(payload, "attachments") == [
        {"name": "Grüße 1.pdf", "type": "application/pdf", "bytes": 19},
        {"name": "notes.txt", "type": "text/plain", "bytes": 12},
        {"type": "text/plain", "bytes": 19},
        {"type": "message/rfc822", "bytes": 25},
    ]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        pytest.param(["", "Hello"], "Hello", id="nothing said"),
        pytest.param(["Content-Type: TEXT/Plain", "", "Hello"], "Hello", id="capitals"),
        pytest.param(["Content-Type: text", "", "Hello"], "Hello", id="half a type"),
        pytest.param(["Content-Type: text/markdown", "", "# Hello"], "# Hello", id="another text"),
        pytest.param(["Content-Disposition: attachment", "", "Hello"], "Hello", id="all is attached"),
        pytest.param(["Content-Type: text/html", "", "<h1>Hello</h1>you"], "Hello\nyou", id="markup"),
        pytest.param(["Content-Type: image/png", "", "x"], "", id="a picture"),
        pytest.param(["Content-Type: multipart/mixed", "", "Hello"], "Hello", id="no boundary"),
        pytest.param(["Content-Type: multipart/mixed; boundary=''", "", "Hello"], "Hello", id="odd boundary"),
        pytest.param(["Content-Type: multipart/mixed; boundary=b", "", "Hello"], "Hello", id="no part"),
        pytest.param(["Content-Type: multipart/mixed; boundary=b", "", "--b", "", "Hello"], "Hello", id="cut off"),
        pytest.param(
            ["Content-Type: multipart/mixed; boundary=b", "", "--b", "", "Hello", "--bc", " --b", "--b--"],
            "Hello\n--bc\n --b",
            id="almost a boundary",
        ),
        pytest.param(
            ["Content-Type: multipart/mixed; boundary=b", "", "--b", "--b", "", "Hello", "--b--"],
            "Hello",
            id="empty part",
        ),
        pytest.param(["Content-Transfer-Encoding: BASE64", "", "SGVs", "bG8="], "Hello", id="base64"),
        pytest.param(["Content-Transfer-Encoding: base64", "", "SGVsbG8"], "Hello", id="base64 without padding"),
        pytest.param(["Content-Transfer-Encoding: base64", "", "SGVsbG8gW"], "Hello ", id="base64 cut off"),
        pytest.param(["Content-Transfer-Encoding: base64", "", "SG!!VsÿbG8"], "Hello", id="base64 with junk"),
        pytest.param(["Content-Transfer-Encoding: quoted-printable", "", "a=3Db=", "c=ZZ=4"], "a=bc=ZZ=4", id="odd qp"),
        pytest.param(["Content-Transfer-Encoding: rot13", "", "Hello"], "Hello", id="unknown encoding"),
        pytest.param(["", "\ufeffHello"], "Hello", id="byte order mark"),
        pytest.param(["", ">From here", "Hello"], ">From here\nHello", id="what a mailbox does to text"),
    ],
)
def test_the_text_is_found_in_any_structure(lines: list[str], text: str) -> None:
    assert text_of(*lines) == text.strip()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"], ids=["LF", "CRLF", "CR", "CRCRLF"])
def test_lines_may_end_in_any_style(end: str) -> None:
    lines = ["Message-ID: <a@example.com>", "Subject: two", "\tlines", *ALTERNATIVE, ""]
    wanted = normalize_mail("\n".join(lines).encode())

    payload = normalize_mail(end.join(lines).encode())

    assert payload == wanted
    assert payload["title"] == "two lines"


@pytest.mark.parametrize(
    "before", ["From ann@example.com Mon Nov 16 03:26:00 2026\n", ">From x\n>From y\n", "\n\n", "\ufeff", "\ufeff\n"]
)
def test_text_before_the_headers_is_ignored(before: str) -> None:
    raw = f"{before}Message-ID: <a@b>\n>From somebody\nSubject : Hello\n\nText"

    payload = normalize_mail(raw.encode())

    assert (payload["title"], payload["capture_text"]) == ("Hello", "Text")


def test_the_headers_end_at_the_first_line_that_is_not_one() -> None:
    payload = normalize_mail(b"Message-ID: <a@b>\nSubject: Hello\nThis is text.\nFrom: nobody\n\nMore.")

    assert payload["capture_text"] == "This is text.\nFrom: nobody\n\nMore."
    assert "author" not in payload


def test_the_first_of_two_fields_counts_and_recipients_are_collected_from_all() -> None:
    payload = read("From: a@b", "From: c@d", "Subject: one", "Subject: two", "To: e@f", "To: g@h, Team: i@j;", "", "")

    assert (payload["author"], payload["title"]) == ("a@b", "one")
    assert found_in(payload, "to") == ["e@f", "g@h", "i@j"]
    assert found_in(payload, "cc") is None


@pytest.mark.parametrize(
    "sender",
    [
        "Ann <ANN@example.com>",
        # The decoded name looks like another address.
        "=?utf-8?q?eve=40evil.example=2C_Ann?= <ann@example.com>",
        "=?utf-8?q?Ann_=3Cann=40example.com=3E?=",
        "Team: Ann <ann@example.com>, bob@example.com;",
    ],
    ids=range(4),
)
def test_the_sender_is_the_address_in_the_header(sender: str) -> None:
    assert found_in(read(f"From: {sender}", "", ""), "from_addr") == "ann@example.com"


def test_the_part_before_a_comma_in_an_unquoted_name_is_not_an_author() -> None:
    assert read("From: Miller, Ann <ann@example.com>", "", "")["author"] == "Ann"


def test_very_long_values_are_keyed_completely_and_shown_in_part() -> None:
    long = "x" * 5000
    people = ", ".join(f"p{number}@example.com" for number in range(500))
    references = " ".join(f"<{number}{long[:600]}@b>" for number in range(101))
    head = f"From: {long} <{long}@b>\nSubject: {long}\nIn-Reply-To: <{long}@b>\nReferences: {references}\nTo: {people}"

    payload = normalize_mail(f"Message-ID: <{long}@b>\n{head}\n\n".encode(), content_type="newsletter")
    other = normalize_mail(f"Message-ID: <{long}@c>\n{head}y\n\n".encode(), content_type="correspondence")

    ref = f"sha256:{hashlib.sha256(f'<{long}@b>'.encode()).hexdigest()}"
    assert payload["external_ref"] == payload["idempotency_key_primary"] == found_in(payload, "message_id") == ref
    assert found_in(payload, "in_reply_to") == ref
    assert cast("str", found_in(payload, "from_addr")).startswith("sha256:")
    assert other["idempotency_key_primary"] == hashlib.sha256(long.encode()).hexdigest()
    assert payload["title"] == found_in(payload, "subject_base") == payload["author"] == "x" * 997 + "…"
    shown = cast("list[str]", found_in(payload, "to"))
    assert (len(shown), shown[0], shown[-1]) == (100, "p0@example.com", "p499@example.com")
    assert len(compact(payload)) < 25_000


# Times and references.

RECEIVED = ["Received: by b; Tue, 17 Feb 2026 12:00:09 -0600", "Received: by a; Tue, 17 Feb 2026 12:00:01 -0600"]


@pytest.mark.parametrize(
    ("lines", "time"),
    [
        (["Date: Tue, 17 Feb 2026 12:00:00 -0600", *RECEIVED], "2026-02-17T18:00:00.000000Z"),
        (["Date: soon", *RECEIVED], "2026-02-17T18:00:09.000000Z"),
        (RECEIVED, "2026-02-17T18:00:09.000000Z"),
        (["Received: by a"], "2026-03-01T00:00:00.000000Z"),
        ([], "2026-03-01T00:00:00.000000Z"),
    ],
    ids=range(5),
)
def test_the_time_comes_from_the_mail_or_the_last_server_or_the_caller(lines: list[str], time: str) -> None:
    raw = "\n".join(["Message-ID: <a@b>", *lines, "", "x"]).encode()

    payload = normalize_mail(raw, received_at="2026-03-01T00:00:00Z")

    assert found_in(payload, "source_time") == time


def test_a_backfilled_mail_always_has_a_reference_and_a_time() -> None:
    raw = b"Subject: Re: Hello\n\nText"

    live, filled = normalize_mail(raw), normalize_mail(raw, backfill=True)
    known = normalize_mail(b"Message-ID: <a@b>\n" + raw, backfill=True, received_at="2026-03-01")

    assert "external_ref" not in live
    assert found_in(live, "source_time") is None
    assert filled["external_ref"] == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert found_in(filled, "source_time") == "1970-01-01T00:00:00.000000Z"
    assert known["external_ref"] == "<a@b>"
    assert found_in(known, "source_time") == "2026-03-01T00:00:00.000000Z"
