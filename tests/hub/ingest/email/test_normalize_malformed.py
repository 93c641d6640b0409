"""Any input gives a storable entry or a refusal with its reason. Never another exception, and never slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceward.core.canonical import Json
from onceward.core.json_text import compact, has_nul
from onceward.errors import InvalidInput
from onceward.hub.ingest.email.normalize import MAIL_BYTES_MAX, normalize_email, normalize_mail
from onceward.hub.ingest.email.parser import DEPTH_MAX, PARTS_MAX, read_mail
from onceward.hub.ingest.payload import Payload

HEAD = b"Message-ID: <a@example.com>\n"
MEGABYTE = 1_000_000


def check(make: Callable[[], Payload]) -> Payload | None:
    """Return the payload, which can be stored; None if it was refused with a printable message."""
    try:
        payload = make()
    except InvalidInput as error:
        texts = [str(error), *(part for field in error.fields for part in field)]
    else:
        texts = []
    if texts:
        assert all(part.encode() for part in texts)
        return None
    assert compact(payload).encode()
    assert not has_nul(payload)
    assert payload["idempotency_key_primary"] or payload["idempotency_key_secondary"]
    assert all(isinstance(reason, str) for reason in cast("list[Json]", payload["reasons"]))
    return payload


def nested(depth: int) -> bytes:
    """Nested multiparts, with text in the innermost one."""
    opened = b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (level, level) for level in range(depth)
    )
    return HEAD + opened + b"\ninside\n"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param(HEAD, "", id="no body"),
        pytest.param(HEAD.strip(), "", id="no line end"),
        pytest.param(HEAD + b"\n\0\0a\0", "a", id="NUL in the body"),
        pytest.param(HEAD + b"Sub\0ject: x\0y\0\n\nz", "z", id="NUL in the head"),
        pytest.param(HEAD + b"Subject: \xff\xfe\xfd\n\nz", "z", id="8 bits in the head"),
        pytest.param(HEAD + b"\xff\xfe: x\n\nz", "ÿþ: x\n\nz", id="8 bits in a name"),
        pytest.param(HEAD + b": x\n\nz", ": x\n\nz", id="no name"),
        pytest.param(b" x\n" + HEAD + b"\nz", None, id="a head that begins with its second line"),
        pytest.param(HEAD + b"Content-Type: text/plain; charset=nobody\n\n\xe9", "é", id="unknown charset"),
        pytest.param(HEAD + b"Content-Type: text/plain; charset=\xff\n\n\xe9", "é", id="charset of junk"),
        pytest.param(HEAD + b"Content-Type: text/plain; charset=utf-7\n\n+2AA-", "\ufffd", id="half a character"),
        pytest.param(HEAD + b"Content-Type: text/plain; charset=utf-16\n\nabc", "abc", id="wrong charset"),
        pytest.param(HEAD + b"Content-Type: ;;;=\n\nz", "z", id="no type"),
        pytest.param(HEAD + b'Content-Type: multipart/mixed; boundary="\n\nz', "z", id="a quote without end"),
        pytest.param(nested(DEPTH_MAX), "inside", id="deep"),
        pytest.param(nested(DEPTH_MAX + 1), "", id="too deep"),
        pytest.param(nested(5000), "", id="much too deep"),
        pytest.param(HEAD + b"From: \xff <\xff@\xff>, ((((\n\nz", "z", id="no sender"),
        pytest.param(HEAD + b"Date: Mon, 99 Foo 99999 99:99:99 +9999\n\nz", "z", id="no date"),
        pytest.param(HEAD + b"Subject: x\nReceived: ;;;\nReferences: <<<>>> < >\n\nz", "z", id="no references"),
        pytest.param(HEAD + b"Content-Transfer-Encoding: base64\n\n\xff====", "", id="no base64"),
        pytest.param(HEAD + b"To: " + b"(" * 1000 + b"\nCc: " + b'"' * 1001 + b"\n\nz", "z", id="open brackets"),
        pytest.param(b"", None, id="nothing"),
        pytest.param(b"\r\n \t\n", None, id="blank"),
        pytest.param(b"\0", None, id="NUL"),
        pytest.param(bytes(range(256)) * 20, None, id="junk"),
        pytest.param(b"\x1f\x8b\x08" + bytes(range(255, 0, -1)), None, id="an archive"),
        pytest.param(b"{}", None, id="JSON"),
        pytest.param(b"Subject: Re:\n\nz", None, id="a reply about nothing"),
        pytest.param(b"Message-ID: <>\nSubject: x\n\nz", None, id="an empty id"),
    ],
)
def test_a_broken_mail_is_an_entry_or_refused(raw: bytes, text: str | None) -> None:
    for backfill in (False, True):
        payload = check(lambda backfill=backfill: normalize_mail(raw, backfill=backfill))  # type: ignore[misc]

        assert (None if payload is None else cast("str", payload.get("capture_text", "")).strip()) == text


# Pieces that broken mail is made of, more often than bytes by chance.
PIECES = st.sampled_from([
    b"\n", b"\r\n", b"\r", b"\n\n", b" ", b":", b";", b",", b'"', b"<", b">", b"(", b"=", b"?", b"\0", b"\xff", b"\xc3",
    b"From: ", b"From ", b">From ", b"To: ", b"Subject: ", b"Subject: Re: x\n", b"Message-ID: ", b"<a@b>", b"Date: ",
    b"Tue, 17 Feb 2026 12:00:00 -0600", b"References: ", b"Received: x;", b"List-Id: ", b"Content-Type: ", b"text/plain",
    b"text/html", b"multipart/mixed", b"; boundary=b", b"\n--b\n", b"\n--b--", b"; charset=", b"utf-8", b"utf-7", b"utf-16",
    b"; name*0*=", b"x''%ff", b"Content-Transfer-Encoding: ", b"base64", b"quoted-printable", b"=3D", b"=?utf-8?q?",
    b"=?x?b?", b"?=", b"+2AA-", b"&#", b"<p>", b"<script>", b"<!--", b"x",
])  # fmt: skip
MAILS = st.one_of(st.binary(max_size=300), st.lists(PIECES | st.binary(max_size=3), max_size=60).map(b"".join))


@given(MAILS, st.booleans(), st.sampled_from([None, "newsletter", "correspondence"]))
@settings(max_examples=200)
def test_no_bytes_raise_another_exception(raw: bytes, backfill: bool, content_type: str | None) -> None:
    check(lambda: normalize_mail(raw, backfill=backfill, content_type=content_type))
    check(lambda: normalize_mail(HEAD + raw, backfill=backfill, content_type=content_type))


TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["Re: x", "a@b", "<a@b>", "2026-02-17", "newsletter", "\0"]
)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "raw_text", "from", "subject", "source", "content_type", "headers", "title", "metadata", "thread_policy", "raw_message",
    "raw_message_base64", "other",
)  # fmt: skip
SOURCES = st.dictionaries(st.sampled_from(["message_id", "date", "references", "received_at", "x"]), VALUES | TEXTS)
OBJECTS = st.dictionaries(st.sampled_from(FIELDS), VALUES | TEXTS | SOURCES) | st.fixed_dictionaries(
    {"raw_text": TEXTS},
    optional={"from": TEXTS, "subject": TEXTS, "source": SOURCES, "headers": st.dictionaries(TEXTS, TEXTS)},
)


@given(OBJECTS)
@example({"raw_text": "x", "source": {"message_id": "a", "\ud800\0": 1}})
@example({"raw_text": "x", "\ud800\0": 1})
@settings(max_examples=200)
def test_no_object_raises_another_exception(sent: dict[str, Json]) -> None:
    check(lambda: normalize_email(sent))


# Time.


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(HEAD + b"Subject: " + b"x" * 10 * MEGABYTE + b"\n\nz", id="subject"),
        pytest.param(HEAD + b"Subject: " + b"x\n " * 3 * MEGABYTE + b"\n\nz", id="folded subject"),
        pytest.param(HEAD + b"Subject: " + b"Re: " * 2 * MEGABYTE + b"z\n\nz", id="replies"),
        pytest.param(HEAD + b"Subject: " + b"[" * 10 * MEGABYTE + b"\n\nz", id="brackets"),
        pytest.param(HEAD + b"Subject: " + b"=?utf-8?q?x?= " * 700_000 + b"\n\nz", id="encoded words"),
        pytest.param(HEAD + b"Subject: " + b"=?a?q?" * MEGABYTE + b"\n\nz", id="open words"),
        pytest.param(HEAD + b"Subject: " + b"\xff" * 10 * MEGABYTE + b"\n\nz", id="8 bits"),
        pytest.param(HEAD + b"a:\n" * 3 * MEGABYTE + b"\nz", id="fields"),
        pytest.param(HEAD + b"From: " + b'"\\' * 3 * MEGABYTE + b"@\n\nz", id="quotes"),
        pytest.param(HEAD + b"To: " + b"a," * 3 * MEGABYTE + b"\n\nz", id="people"),
        pytest.param(HEAD + b"References: " + b"<a>" * 3 * MEGABYTE + b"\n\nz", id="references"),
        pytest.param(HEAD + b"Content-Type: a/b" + b';a="\\"' * MEGABYTE + b"\n\nz", id="parameters"),
        pytest.param(HEAD + b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b\n\nz\n" * MEGABYTE, id="parts"),
        pytest.param(HEAD + b"Content-Type: multipart/mixed; boundary=b\n\n" + b"--b" * 2 * MEGABYTE, id="no parts"),
        pytest.param(nested(100_000), id="depth"),
        pytest.param(HEAD + b"\n" + b"\0" * 10 * MEGABYTE, id="NULs"),
        pytest.param(HEAD + b"Content-Transfer-Encoding: base64\n\n" + b"!" * 10 * MEGABYTE, id="no base64"),
        pytest.param(b"\n" * 10 * MEGABYTE, id="empty lines"),
        pytest.param(bytes(10 * MEGABYTE), id="junk"),
    ],
)
def test_ten_megabytes_of_any_input_are_read_quickly(raw: bytes) -> None:
    began = time.process_time()

    payload = check(lambda: normalize_mail(raw, backfill=True))

    assert time.process_time() - began < 15  # on a slow machine; what grows with the square takes hours
    if payload is not None:
        shown = {**payload, "capture_text": None, "clean_text": None}
        assert len(compact(cast("Json", shown))) < 200_000


@pytest.mark.parametrize("raw", [b"", b"\r\n \t\n"], ids=["nothing", "blank"])
def test_an_empty_mail_is_reported_as_empty(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="the mail is empty"):
        normalize_mail(raw, backfill=True)


def test_a_mail_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the mail must be at most 134217728 bytes, got 134217729"):
        normalize_mail(bytes([120]) * (MAIL_BYTES_MAX + 1))


def test_the_last_of_too_many_parts_are_left_out() -> None:
    parts = b"--b\nContent-Type: image/png\n\nx\n" * (PARTS_MAX + 5)

    mail = read_mail(HEAD + b"Content-Type: multipart/mixed; boundary=b\n\n" + parts)

    assert len(mail.parts) == PARTS_MAX - 1
