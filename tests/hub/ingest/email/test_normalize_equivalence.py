"""Mail that Python's own library writes is parsed as it was meant, and has the same keys as its parsed form."""

from __future__ import annotations

import datetime
import email.policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from typing import cast

from hypothesis import assume, given
from hypothesis import strategies as st

from onceward.core.canonical import Json
from onceward.hub.ingest.email.body import body_of
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.email.parser import read_mail
from onceward.hub.ingest.normalize.subject import subject_base
from onceward.hub.ingest.normalize.text import clean
from onceward.hub.ingest.payload import Payload

KEYS = ("idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary")

# Letters of many alphabets, and marks that mean something in heads; no control characters, which no head can have.
LETTERS = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp", "Co", "Cn", "Cf"])
WORDS = st.text(LETTERS | st.sampled_from(' ,;:"()<>@[]\\\\=?_'), max_size=60)
SUBJECTS = st.builds("{}{}".format, st.sampled_from(["", "Re: ", "[News] ", "Fwd: RE: "]), WORDS)
TEXTS = st.lists(st.text(LETTERS, max_size=100), max_size=5).map(lambda lines: "\n".join(["Hello", *lines]))
IDS = st.from_regex(r"[a-z0-9.]{1,20}@[a-z]{1,10}\.example", fullmatch=True)
TIMESTAMPS = st.datetimes(
    datetime.datetime(1990, 1, 1),  # noqa: DTZ001  # the zone is drawn beside it
    datetime.datetime(2037, 1, 1),  # noqa: DTZ001
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda by: datetime.timezone(datetime.timedelta(minutes=by))),
).map(lambda timestamp: timestamp.replace(microsecond=0))
POLICIES = st.sampled_from([email.policy.default, email.policy.SMTP, email.policy.SMTPUTF8])


@st.composite
def mails(draw: st.DrawFn) -> tuple[EmailMessage, dict[str, Json]]:
    """Draw a mail as Python writes it, and the same mail in its parsed form."""
    sender = Address(draw(WORDS).strip(), draw(st.sampled_from(["ann", "Bob.C"])), "example.com")
    subject, text, message_id, timestamp = draw(SUBJECTS), draw(TEXTS), draw(IDS), draw(TIMESTAMPS)
    mail = EmailMessage()
    mail["From"] = sender
    mail["Subject"] = subject
    mail["Message-ID"] = f"<{message_id}>"
    mail["Date"] = format_datetime(timestamp)
    mail.set_content(text, cte=draw(st.sampled_from(["quoted-printable", "base64", "8bit"])))
    if draw(st.booleans()):
        mail.add_alternative("<p>markup</p>", subtype="html")
    if draw(st.booleans()):
        mail.add_attachment(b"bytes", "image", "png", filename=draw(st.sampled_from(["a.png", "Grüße, 1.png"])))
    form: dict[str, Json] = {
        "raw_text": text,
        "from": str(sender),
        "subject": subject,
        "source": {"message_id": message_id, "date": timestamp.isoformat()},
    }
    return mail, form


def python_reads_back(raw: bytes, subject: str) -> bool:
    """Return whether Python itself reads the subject that it wrote.

    Its writer loses a space that it folds between two encoded words: a reader drops white space there (RFC 2047, 6.2).
    """
    read = email.message_from_bytes(raw, policy=email.policy.default)["Subject"]
    return str(read).split() == subject.split()


def keys(payload: Payload) -> list[Json]:
    return [payload[name] for name in KEYS]


@given(mails(), POLICIES, st.sampled_from(["newsletter", "correspondence", None]))
def test_a_raw_mail_and_its_parsed_form_have_the_same_keys(
    mail: tuple[EmailMessage, dict[str, Json]], policy: email.policy.EmailPolicy, content_type: str | None
) -> None:
    message, form = mail
    assume(content_type == "newsletter" or subject_base(cast("str", form["subject"])))
    raw = message.as_bytes(policy=policy)
    assume(python_reads_back(raw, cast("str", form["subject"])))

    of_raw = normalize_mail(raw, content_type=content_type)
    of_form = normalize_email({**form, "content_type": content_type})

    assert keys(of_raw) == keys(of_form)
    for name in ("clean_text", "external_ref", "title"):
        assert of_raw.get(name) == of_form.get(name)
    assert metadata(of_raw).get("source_time") == metadata(of_form).get("source_time")


@given(mails(), POLICIES)
def test_attachments_are_those_that_the_standard_library_finds(
    mail: tuple[EmailMessage, dict[str, Json]], policy: email.policy.EmailPolicy
) -> None:
    raw = mail[0].as_bytes(policy=policy)
    read = email.message_from_bytes(raw, policy=email.policy.default)

    body = body_of(read_mail(raw))

    assert body.attachments == [
        {
            **({"name": name} if (name := part.get_filename()) else {}),
            "type": part.get_content_type(),
            "bytes": len(part.get_content()),
        }
        for part in read.iter_attachments()
    ]
    assert clean(body.text) == clean(cast("EmailMessage", read.get_body(["plain"])).get_content())


def metadata(payload: Payload) -> dict[str, Json]:
    return cast("dict[str, Json]", payload["metadata"])
