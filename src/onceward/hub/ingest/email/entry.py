"""Payload of a mail: its content type, columns, metadata and keys, from either form of input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.email.body import MailBody
from onceward.hub.ingest.email.classify import NEWSLETTER, kind_of
from onceward.hub.ingest.email.encodings import words_decoded
from onceward.hub.ingest.email.headers import Headers, author_of, first, identifiers, mailboxes, on_one_line
from onceward.hub.ingest.normalize.dates import date_bucket, source_time
from onceward.hub.ingest.normalize.keys import (
    EMAIL_THREAD,
    EMAIL_THREAD_V2,
    EntryKeys,
    from_addr,
    message_id,
    newsletter_keys,
    stored,
    thread_keys,
    thread_v2_keys,
)
from onceward.hub.ingest.normalize.subject import subject_base
from onceward.hub.ingest.normalize.text import clean, sha256_hex
from onceward.hub.ingest.payload import Payload, known

SOURCE = "email"
THREAD_POLICIES = (EMAIL_THREAD, EMAIL_THREAD_V2)
# Stored header values are truncated to the maximum line length of RFC 5322. Keys are made from the whole value.
SHOWN_LENGTH_MAX = 998
# Of a longer list, the first and the last items are stored: the root of a thread, and the mails replied to.
LISTED_MAX = 100
# The version of a mail without a time: older than all others.
NO_TIME = "1970-01-01T00:00:00.000000Z"


@dataclass(frozen=True, slots=True)
class MailOverrides:
    """Values from the caller, which override those of the mail."""

    content_type: str | None = None
    thread_policy: str = EMAIL_THREAD
    title: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MailMessage:
    """A parsed mail. `sender` and `headers` are not decoded; `subject` is.

    `reference` replaces a missing Message-ID, and `time` a missing time. `notes` are added to the reasons.
    """

    body: MailBody
    sender: str | None
    subject: str | None
    message_id: str | None
    date: str | int | None
    headers: Headers
    reference: str | None = None
    time: str | None = None
    notes: tuple[str, ...] = ()


def payload_of(message: MailMessage, overrides: MailOverrides) -> Payload:
    """Build the entry, its keys, and the reasons for both. Fields that the mail does not have are left out.

    Raises `InvalidInput` if the mail has no key by which a second copy could be recognised.
    """
    if overrides.thread_policy not in THREAD_POLICIES:
        raise refused("thread_policy", f"must be one of {', '.join(THREAD_POLICIES)}")
    kind = kind_of(overrides.content_type, message.subject, message.headers)
    id_of_it = message_id(message.message_id)
    references = identifiers(first(message.headers, "references"))
    in_reply_to = next(iter(identifiers(first(message.headers, "in-reply-to"))), None)
    sender = _address(message.sender)
    if kind.content_type == NEWSLETTER:
        keys = newsletter_keys(id_of_it, sender or message.sender, message.subject, message.date)
        why = _why_newsletter(keys, sender, message)
    elif overrides.thread_policy == EMAIL_THREAD:
        keys = thread_keys(message.subject)
        why = "It is identified by its subject without Re:, Fwd: and tags; participants do not matter."
    else:
        keys = thread_v2_keys(references, in_reply_to, id_of_it, message.subject)
        why = "It is identified by the first mail of its thread, or by its subject if the headers name no first mail."
    clean_text = clean(message.body.text)
    metadata: dict[str, Json] = {
        "source_time": _source_time(message),
        "message_id": None if id_of_it is None else stored(id_of_it),
        "in_reply_to": None if in_reply_to is None else stored(in_reply_to),
        "references": [stored(reference) for reference in _ends(references)],
        "from": _shown(message.sender),
        "from_addr": None if sender is None else stored(sender),
        "to": _people(message.headers, "to"),
        "cc": _people(message.headers, "cc"),
        "date": source_time(message.date) if isinstance(message.date, int) else _shown(message.date),
        "list_id": _shown(first(message.headers, "list-id")),
        "subject_base": _cut(subject_base(message.subject or "")),
        "body_type": message.body.read_as,
        "attachments": message.body.attachments,
    }
    columns: dict[str, Json] = {
        "source": SOURCE,
        "content_type": kind.content_type,
        "title": clean(_cut(overrides.title or message.subject or "")),
        "author": None if message.sender is None else _author(message.sender),
        "capture_text": message.body.text if clean_text else None,
        "clean_text": clean_text,
        "content_hash": sha256_hex(clean_text) if clean_text else None,
        "external_ref": message.reference if id_of_it is None else stored(id_of_it),
    }
    return {
        **known(columns),
        "metadata": {**known(metadata), **overrides.metadata},
        "idempotency_policy_key": keys.policy_key,
        "idempotency_key_primary": keys.primary,
        "idempotency_key_secondary": keys.secondary,
        "reasons": [kind.reason, why, *message.notes],
    }


def _why_newsletter(keys: EntryKeys, sender: str | None, message: MailMessage) -> str:
    if keys.secondary is not None:
        by_issue = "by its sender, subject and day"
        by_id = "" if keys.primary is None else "by its Message-ID, and "
        return f"It is identified {by_id}{by_issue}."
    parts = {"sender": sender, "subject": subject_base(message.subject or ""), "date": date_bucket(message.date)}
    missing = ", ".join(name for name, part in parts.items() if not part)
    return f"It is identified by its Message-ID alone. Missing or unreadable: {missing}."


def _source_time(message: MailMessage) -> str | None:
    """Return the version of the content: the mail's date, else the time in Received, else the caller's time."""
    found = source_time(message.date)
    if found is None and (received := first(message.headers, "received")) is not None:
        found = source_time(received.rpartition(";")[2])
    return message.time if found is None else found


def _address(sender: str | None) -> str | None:
    """Return the sender's address, from the undecoded header first: a decoded name may contain a comma or bracket.

    Some senders encode even the address, so the decoded header is tried next.
    """
    return None if sender is None else from_addr(sender) or from_addr(words_decoded(sender))


def _author(sender: str) -> str | None:
    found = mailboxes(sender)
    # An unquoted name with a comma looks like two addresses, of which the first has no @.
    mailbox = next((mailbox for mailbox in found if "@" in mailbox), found[0] if found else "")
    return _cut(author_of(mailbox)) or None


def _people(headers: Headers, name: str) -> list[Json] | None:
    """Return the mailboxes in all header fields of this name."""
    if name not in headers:
        return None
    people = [person for value in headers[name] for person in mailboxes(on_one_line(value))]
    return [_cut(words_decoded(person)) for person in _ends(people)]


def _ends(items: Sequence[str]) -> Sequence[str]:
    return items if len(items) <= LISTED_MAX else [items[0], *items[1 - LISTED_MAX :]]


def _shown(value: str | None) -> str | None:
    return None if value is None else _cut(words_decoded(value))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[: SHOWN_LENGTH_MAX - 1]}…"
