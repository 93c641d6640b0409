"""From a mail, in whichever form it came, to the payload of an insert: what it is, and by which keys it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onceward.core.canonical import Json
from onceward.core.text import refused
from onceward.ingest.date import date_bucket, source_time
from onceward.ingest.email.body import Body
from onceward.ingest.email.classify import NEWSLETTER, kind_of
from onceward.ingest.email.header import Headers, author_of, first, identifiers, mailboxes, on_one_line
from onceward.ingest.email.words import words_decoded
from onceward.ingest.keys import (
    EMAIL_THREAD,
    EMAIL_THREAD_V2,
    Keys,
    from_addr,
    message_id,
    newsletter_keys,
    stored,
    thread_keys,
    thread_v2_keys,
)
from onceward.ingest.payload import Payload, known
from onceward.ingest.subject import subject_base
from onceward.ingest.text import clean, sha256_hex

SOURCE = "email"
THREAD_POLICIES = (EMAIL_THREAD, EMAIL_THREAD_V2)
# What is shown of a head is cut here: RFC 5322 has no longer lines. Keys are made of the whole.
SHOWN_LENGTH_MAX = 998
# Of more, the first and the last say most: the root of a thread, and what is answered.
LISTED_MAX = 100
# The version of a mail that says nothing of its time: older than all that do.
NO_TIME = "1970-01-01T00:00:00.000000Z"


@dataclass(frozen=True, slots=True)
class Said:
    """What the caller says himself; it counts more than what the mail says."""

    content_type: str | None = None
    thread_policy: str = EMAIL_THREAD
    title: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Letter:
    """What is known of a mail. `sender` and `headers` are as they came; `subject` is decoded.

    `reference` stands for a Message-ID that is missing, and `time` for a time. `notes` are added to the reasons.
    """

    body: Body
    sender: str | None
    subject: str | None
    message_id: str | None
    date: str | int | None
    headers: Headers
    reference: str | None = None
    time: str | None = None
    notes: tuple[str, ...] = ()


def payload_of(letter: Letter, said: Said) -> Payload:
    """Build the entry, its keys, and the reasons for both, without the fields that the mail says nothing about.

    `InvalidInput` when it could not be recognised if it came again.
    """
    if said.thread_policy not in THREAD_POLICIES:
        raise refused("thread_policy", f"must be one of {', '.join(THREAD_POLICIES)}")
    kind = kind_of(said.content_type, letter.subject, letter.headers)
    id_of_it = message_id(letter.message_id)
    references = identifiers(first(letter.headers, "references"))
    in_reply_to = next(iter(identifiers(first(letter.headers, "in-reply-to"))), None)
    sender = _address(letter.sender)
    if kind.content_type == NEWSLETTER:
        keys = newsletter_keys(id_of_it, sender or letter.sender, letter.subject, letter.date)
        why = _why_newsletter(keys, sender, letter)
    elif said.thread_policy == EMAIL_THREAD:
        keys = thread_keys(letter.subject)
        why = "It is known by its subject without Re:, Fwd: and tags, whoever takes part."
    else:
        keys = thread_v2_keys(references, in_reply_to, id_of_it, letter.subject)
        why = "It is known by the first mail of its thread, as its head names it, or by its subject if it names none."
    clean_text = clean(letter.body.text)
    metadata: dict[str, Json] = {
        "source_time": _source_time(letter),
        "message_id": None if id_of_it is None else stored(id_of_it),
        "in_reply_to": None if in_reply_to is None else stored(in_reply_to),
        "references": [stored(reference) for reference in _ends(references)],
        "from": _shown(letter.sender),
        "from_addr": None if sender is None else stored(sender),
        "to": _people(letter.headers, "to"),
        "cc": _people(letter.headers, "cc"),
        "date": source_time(letter.date) if isinstance(letter.date, int) else _shown(letter.date),
        "list_id": _shown(first(letter.headers, "list-id")),
        "subject_base": _cut(subject_base(letter.subject or "")),
        "body_type": letter.body.read_as,
        "attachments": letter.body.attachments,
    }
    columns: dict[str, Json] = {
        "source": SOURCE,
        "content_type": kind.content_type,
        "title": clean(_cut(said.title or letter.subject or "")),
        "author": None if letter.sender is None else _author(letter.sender),
        "capture_text": letter.body.text if clean_text else None,
        "clean_text": clean_text,
        "content_hash": sha256_hex(clean_text) if clean_text else None,
        "external_ref": letter.reference if id_of_it is None else stored(id_of_it),
    }
    return {
        **known(columns),
        "metadata": {**known(metadata), **said.metadata},
        "idempotency_policy_key": keys.policy_key,
        "idempotency_key_primary": keys.primary,
        "idempotency_key_secondary": keys.secondary,
        "reasons": [kind.reason, why, *letter.notes],
    }


def _why_newsletter(keys: Keys, sender: str | None, letter: Letter) -> str:
    if keys.secondary is not None:
        by_issue = "by its sender, subject and day"
        return f"It is known {by_issue}." if keys.primary is None else f"It is known by its Message-ID, and {by_issue}."
    parts = {"sender": sender, "subject": subject_base(letter.subject or ""), "date": date_bucket(letter.date)}
    missing = ", ".join(name for name, part in parts.items() if not part)
    return f"It is known by its Message-ID alone. Missing or unreadable: {missing}."


def _source_time(letter: Letter) -> str | None:
    """The version of the content: the mail's own time, else when the last server took it, else what the caller knows."""
    found = source_time(letter.date)
    if found is None and (received := first(letter.headers, "received")) is not None:
        found = source_time(received.rpartition(";")[2])
    return letter.time if found is None else found


def _address(sender: str | None) -> str | None:
    """Of what came, since a name may hold a comma or bracket once decoded; some senders encode even the address."""
    return None if sender is None else from_addr(sender) or from_addr(words_decoded(sender))


def _author(sender: str) -> str | None:
    found = mailboxes(sender)
    # A name with a comma that is not in quotes looks like two addresses, of which the first is none.
    mailbox = next((mailbox for mailbox in found if "@" in mailbox), found[0] if found else "")
    return _cut(author_of(mailbox)) or None


def _people(headers: Headers, name: str) -> list[Json] | None:
    """Everybody in all fields of this name."""
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
