"""Makes entries of mail, in each form in which it comes."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import replace

from onceward.core.canonical import Json
from onceward.core.text import refused
from onceward.errors import InvalidInput
from onceward.ingest.date import source_time
from onceward.ingest.email.body import Body, body_of
from onceward.ingest.email.charset import storable
from onceward.ingest.email.entry import NO_TIME, Letter, Said, payload_of
from onceward.ingest.email.header import Headers, first, on_one_line
from onceward.ingest.email.mail import read_mail
from onceward.ingest.email.words import words_decoded
from onceward.ingest.fields import Fields
from onceward.ingest.fields import storable as checked_text
from onceward.ingest.keys import EMAIL_THREAD, message_id
from onceward.ingest.payload import Payload
from onceward.ingest.said import metadata_said, time_said

# Servers take 50 MB at most; a mail is held in memory a few times over while it is read.
MAIL_BYTES_MAX = 128 * 1024 * 1024
# Enough to see a mistake by.
_NAMES_SHOWN_MAX, _NAME_LENGTH_MAX = 5, 64

# What a caller may say beside a mail of any form.
_SAID = frozenset({"content_type", "thread_policy", "title", "metadata", "source"})
_RAW_FORMS = ("raw_message", "raw_message_base64")
_HEAD_AND_TEXT = frozenset({"raw_text", "from", "subject", "headers"})
# The first two are never used, by the rule that those beside `raw_text` count; the system is always email.
_SOURCE = frozenset({"from_addr", "subject", "system", "received_at"})
_SOURCE_HEAD = frozenset({"message_id", "date", "in_reply_to", "references"})


def normalize_email(sent: Mapping[str, Json], *, backfill: bool = False) -> Payload:
    """The entry of a mail, in one of three forms.

    * `{raw_text, from, subject, source: {message_id, date}}` has a mail's text and head, read already. There may be
      `headers` (texts, or lists of texts, by name), by which newsletters and correspondence are told apart; and
      `source.in_reply_to` and `source.references`, which stand for the headers of these names.
    * `{raw_message}` has the whole mail as text, and `{raw_message_base64}` as bytes: see `normalize_mail`.

    Beside each may stand `content_type`, `title` and `metadata`, which count more than what the mail says;
    `thread_policy`, the policy by which correspondence is keyed; and `source.received_at`, the time of a mail that says
    none. What else is in `source` is not used, and the reasons say so. `backfill` is as for `normalize_mail`.
    `InvalidInput` says what is wrong with which field, or that the mail could not be known again if it came twice.
    """
    fields = Fields(sent)
    form = next((name for name in _RAW_FORMS if fields.has(name)), None)
    _only(fields, _SAID | ({form} if form else _HEAD_AND_TEXT.union(_RAW_FORMS)))
    said = Said(
        fields.label("content_type"),
        fields.label("thread_policy") or EMAIL_THREAD,
        fields.label("title"),
        metadata_said(fields),
    )
    source = fields.within("source")
    time = time_said(source, "received_at")
    if form is None:
        letter = _letter_of_form(fields, source, time, _notes(source, _SOURCE | _SOURCE_HEAD))
        parts = (letter.sender, letter.subject, letter.date, letter.body.text)
        raw = "\n".join(map(str, parts)).encode()
    else:
        raw = _raw_bytes(fields, form)
        letter = _letter_of_mail(raw, is_text=form == "raw_message", time=time, notes=_notes(source, _SOURCE))
    return payload_of(_filled(letter, raw) if backfill else letter, said)


def normalize_mail(
    raw: bytes,
    *,
    received_at: str | None = None,
    content_type: str | None = None,
    thread_policy: str = EMAIL_THREAD,
    backfill: bool = False,
) -> Payload:
    """The entry of a raw mail (RFC 5322), however broken it is; `InvalidInput` if it could not be known again.

    Text has no NUL, which cannot be stored, and U+FFFD where bytes mean nothing. `received_at` is the time of a mail that
    says none. With `backfill` every mail has an `external_ref` and a time, if need be the hash of its bytes and 1970, so
    that the newest of a thread is the same one in whichever order they come.
    """
    letter = _letter_of_mail(raw, is_text=False, time=source_time(received_at))
    return payload_of(_filled(letter, raw) if backfill else letter, Said(content_type, thread_policy))


def _filled(letter: Letter, raw: bytes) -> Letter:
    if message_id(letter.message_id) is None:
        letter = replace(letter, reference=f"sha256:{hashlib.sha256(raw).hexdigest()}")
    return letter if letter.time else replace(letter, time=NO_TIME)


# A mail that was read already.


def _letter_of_form(fields: Fields, source: Fields, time: str | None, notes: tuple[str, ...]) -> Letter:
    text = fields.text("raw_text")
    if text is None:
        raise refused("raw_text", "is missing")
    headers = _headers(fields, source)
    subject = fields.text("subject") or first(headers, "subject")
    return Letter(
        body=Body(text, None, None),
        sender=_line(fields.text("from") or first(headers, "from")),
        subject=None if subject is None else _line(words_decoded(subject)),
        message_id=source.label("message_id") or first(headers, "message-id"),
        date=_date(source) or first(headers, "date"),
        headers=headers,
        time=time,
        notes=notes,
    )


def _headers(fields: Fields, source: Fields) -> Headers:
    within = fields.within("headers")
    headers: dict[str, list[str]] = {}
    for name in within.sent:
        headers.setdefault(name.strip().lower(), []).extend(_texts(within, name))
    for name, header in (("in_reply_to", "in-reply-to"), ("references", "references")):
        if source.has(name):
            headers[header] = [" ".join(_texts(source, name))]
    return headers


def _texts(fields: Fields, name: str) -> list[str]:
    value = fields.sent.get(name)
    if isinstance(value, list):
        return [checked_text(f"{fields.place(name)}[{index}]", item) for index, item in enumerate(value)]
    return [] if value is None else [checked_text(fields.place(name), value)]


def _line(text: str | None) -> str | None:
    return None if text is None else on_one_line(text) or None


def _date(source: Fields) -> str | int | None:
    """As it was sent: a date that cannot be read costs only the secondary key."""
    date = source.sent.get("date")
    if isinstance(date, int) and not isinstance(date, bool):
        return date
    return None if date is None else checked_text(source.place("date"), date).strip() or None


# A raw mail.


def _letter_of_mail(raw: bytes, *, is_text: bool, time: str | None, notes: tuple[str, ...] = ()) -> Letter:
    if not raw or raw.isspace():
        raise InvalidInput("the mail is empty")
    if len(raw) > MAIL_BYTES_MAX:
        raise InvalidInput(f"the mail is longer than {MAIL_BYTES_MAX} bytes")
    mail = read_mail(raw)
    headers = mail.headers
    subject = first(headers, "subject")
    return Letter(
        body=body_of(mail, is_text=is_text),
        sender=first(headers, "from"),
        subject=None if subject is None else _line(words_decoded(subject)),
        message_id=first(headers, "message-id"),
        date=first(headers, "date"),
        headers=headers,
        time=time,
        notes=notes,
    )


def _raw_bytes(fields: Fields, form: str) -> bytes:
    text = fields.text(form) or ""
    if form == "raw_message":
        return text.encode()
    # Both alphabets, with padding or without: mail programs' own interfaces give the second one.
    letters = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise refused(form, "is not base64") from None


# What may stand beside a mail of any form.


def _only(fields: Fields, known: frozenset[str]) -> None:
    unknown = sorted(storable(name)[:_NAME_LENGTH_MAX] for name in fields.sent if name not in known)
    if unknown:
        names = ", ".join(unknown[:_NAMES_SHOWN_MAX])
        raise InvalidInput(
            f"not known here: {names}; known: {', '.join(sorted(known))}",
            tuple((name, "is not known here") for name in unknown[:_NAMES_SHOWN_MAX]),
        )


def _notes(source: Fields, known: frozenset[str]) -> tuple[str, ...]:
    unused = sorted(storable(name)[:_NAME_LENGTH_MAX] for name in source.sent if name not in known)
    names = ", ".join(f"source.{name}" for name in unused[:_NAMES_SHOWN_MAX])
    return (f"Not used: {names}.",) if unused else ()
