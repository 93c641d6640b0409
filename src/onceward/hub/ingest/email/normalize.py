"""Normalization of mail, raw or already parsed, into payloads."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import replace

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.errors import InvalidInput
from onceward.hub.ingest.email.body import MailBody, body_of
from onceward.hub.ingest.email.charset import storable
from onceward.hub.ingest.email.encodings import words_decoded
from onceward.hub.ingest.email.entry import NO_TIME, MailMessage, MailOverrides, payload_of
from onceward.hub.ingest.email.headers import Headers, first, on_one_line
from onceward.hub.ingest.email.parser import read_mail
from onceward.hub.ingest.normalize.caller_fields import caller_metadata, caller_time
from onceward.hub.ingest.normalize.dates import source_time
from onceward.hub.ingest.normalize.fields import Fields
from onceward.hub.ingest.normalize.fields import storable as checked_text
from onceward.hub.ingest.normalize.keys import EMAIL_THREAD, message_id
from onceward.hub.ingest.payload import Payload

# Mail servers accept at most about 50 MB. Parsing holds several copies of a mail in memory.
MAIL_BYTES_MAX = 128 * 1024 * 1024
# How many unknown names a message lists, and how much of each.
_NAMES_SHOWN_MAX, _NAME_LENGTH_MAX = 5, 64

# Fields that a caller may send with a mail in any form.
_OVERRIDES = frozenset({"content_type", "thread_policy", "title", "metadata", "source"})
_RAW_FORMS = ("raw_message", "raw_message_base64")
_HEAD_AND_TEXT = frozenset({"raw_text", "from", "subject", "headers"})
# The first two are never used: by the ingest contract, `from` and `subject` next to `raw_text` count. `system` is
# always email.
_SOURCE = frozenset({"from_addr", "subject", "system", "received_at"})
_SOURCE_HEAD = frozenset({"message_id", "date", "in_reply_to", "references"})


def normalize_email(sent: Mapping[str, Json], *, backfill: bool = False) -> Payload:
    """Return the payload of a mail in one of three forms.

    * `{raw_text, from, subject, source: {message_id, date}}` is a mail that was parsed already. It may have `headers`
      (a string or a list of strings by name), which distinguish newsletters from correspondence, and
      `source.in_reply_to` and `source.references`, which replace the headers of these names.
    * `{raw_message}` is the whole mail as text, and `{raw_message_base64}` as bytes: see `normalize_mail`.

    Each form may also have `content_type`, `title` and `metadata`, which override the values of the mail;
    `thread_policy`, the policy that gives correspondence its keys; and `source.received_at`, the time of a mail without
    a date. Other fields of `source` are not used, and the reasons list them. `backfill` is as for `normalize_mail`.
    `InvalidInput` names the invalid field, or says that the mail has no key by which a second copy could be recognised.
    """
    fields = Fields(sent)
    form = next((name for name in _RAW_FORMS if fields.has(name)), None)
    _only(fields, _OVERRIDES | ({form} if form else _HEAD_AND_TEXT.union(_RAW_FORMS)))
    overrides = MailOverrides(
        fields.label("content_type"),
        fields.label("thread_policy") or EMAIL_THREAD,
        fields.label("title"),
        caller_metadata(fields),
    )
    source = fields.within("source")
    time = caller_time(source, "received_at")
    if form is None:
        message = _message_of_form(fields, source, time, _notes(source, _SOURCE | _SOURCE_HEAD))
        parts = (message.sender, message.subject, message.date, message.body.text)
        raw = "\n".join(map(str, parts)).encode()
    else:
        raw = _raw_bytes(fields, form)
        message = _message_of_mail(raw, is_text=form == "raw_message", time=time, notes=_notes(source, _SOURCE))
    return payload_of(_filled(message, raw) if backfill else message, overrides)


def normalize_mail(
    raw: bytes,
    *,
    received_at: str | None = None,
    content_type: str | None = None,
    thread_policy: str = EMAIL_THREAD,
    backfill: bool = False,
) -> Payload:
    """Return the payload of a raw mail (RFC 5322), even a malformed one; `InvalidInput` if it has no key.

    NUL, which cannot be stored, is removed from text, and invalid bytes become U+FFFD. `received_at` is the time of a
    mail without a date. With `backfill` every mail has an `external_ref` and a time, if necessary the hash of its bytes
    and 1970, so that the newest mail of a thread does not depend on the order of arrival.
    """
    message = _message_of_mail(raw, is_text=False, time=source_time(received_at))
    return payload_of(_filled(message, raw) if backfill else message, MailOverrides(content_type, thread_policy))


def _filled(message: MailMessage, raw: bytes) -> MailMessage:
    if message_id(message.message_id) is None:
        message = replace(message, reference=f"sha256:{hashlib.sha256(raw).hexdigest()}")
    return message if message.time else replace(message, time=NO_TIME)


# A mail that was parsed already.


def _message_of_form(fields: Fields, source: Fields, time: str | None, notes: tuple[str, ...]) -> MailMessage:
    text = fields.text("raw_text")
    if text is None:
        raise refused("raw_text", "is missing")
    headers = _headers(fields, source)
    subject = fields.text("subject") or first(headers, "subject")
    return MailMessage(
        body=MailBody(text, None, None),
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
    """Return the date as it was sent. If it is invalid, only the secondary key is lost."""
    date = source.sent.get("date")
    if isinstance(date, int) and not isinstance(date, bool):
        return date
    return None if date is None else checked_text(source.place("date"), date).strip() or None


# A raw mail.


def _message_of_mail(raw: bytes, *, is_text: bool, time: str | None, notes: tuple[str, ...] = ()) -> MailMessage:
    if not raw or raw.isspace():
        raise InvalidInput("the mail is empty")
    if len(raw) > MAIL_BYTES_MAX:
        raise InvalidInput(f"the mail must be at most {MAIL_BYTES_MAX} bytes, got {len(raw)}")
    mail = read_mail(raw)
    headers = mail.headers
    subject = first(headers, "subject")
    return MailMessage(
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
    # Accept both base64 alphabets, with or without padding: the APIs of mail programs return the URL-safe one.
    letters = "".join(text.split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise refused(form, "is not valid base64") from None


# Fields next to a mail of any form.


def _only(fields: Fields, known: frozenset[str]) -> None:
    unknown = sorted(storable(name)[:_NAME_LENGTH_MAX] for name in fields.sent if name not in known)
    if unknown:
        names = ", ".join(unknown[:_NAMES_SHOWN_MAX])
        raise InvalidInput(
            f"unknown fields: {names}; allowed are {', '.join(sorted(known))}",
            tuple((name, "is not an allowed field") for name in unknown[:_NAMES_SHOWN_MAX]),
        )


def _notes(source: Fields, known: frozenset[str]) -> tuple[str, ...]:
    unused = sorted(storable(name)[:_NAME_LENGTH_MAX] for name in source.sent if name not in known)
    names = ", ".join(f"source.{name}" for name in unused[:_NAMES_SHOWN_MAX])
    return (f"Not used: {names}.",) if unused else ()
