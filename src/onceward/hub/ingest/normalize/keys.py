"""Idempotency keys of each policy. A message without a key is refused, because it could be inserted twice.

The participants of a conversation are never part of a key: people join and leave, and the thread stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.core.json_text import refused
from onceward.errors import InvalidInput
from onceward.hub.ingest.normalize.dates import date_bucket
from onceward.hub.ingest.normalize.fields import whole_number
from onceward.hub.ingest.normalize.subject import subject_base, thread_subject
from onceward.hub.ingest.normalize.text import sha256_hex
from onceward.hub.ingest.normalize.url import canonical, without_tracking

TELEGRAM_THOUGHT = "telegram_thought_v1"
TELEGRAM_LINK = "telegram_link_v1"
EMAIL_NEWSLETTER = "email_newsletter_v1"
EMAIL_THREAD = "email_correspondence_thread_v1"
EMAIL_THREAD_V2 = "email_correspondence_thread_v2"

# An index entry must fit into a page. A longer key is stored as its hash.
KEY_BYTES_MAX = 512

_ANGLE = re.compile(r"<([^<>]*+)>")
# Tokens of a From line. A quoted string is a name, or the mailbox of an address if an @ follows. An unclosed quote runs
# to the end. Possessive and without overlaps, so that nothing is matched twice.
_NO_WORD = r"\s\"\\<>(),;:"
_TOKEN = re.compile(
    rf'"(?:[^"\\]|\\.)*+"(?P<quoted>@[^{_NO_WORD}]++)?|"(?P<open>.*+)|\([^()]*+\)|<(?P<angle>[^<>]*+)>'
    rf"|(?P<end>[,;])|(?P<word>[^{_NO_WORD}]++)",
    re.DOTALL,
)

# The fields that identify a newsletter without a Message-ID, and the message for each that is present but unusable.
_PARTS = ("from", "subject", "source.date")
_UNREADABLE = ("has no address", "has only prefixes and tags", "is not a valid date")


@dataclass(frozen=True, slots=True)
class EntryKeys:
    """Policy and keys of an entry; at least one of the two keys is set."""

    policy_key: str
    primary: str | None
    secondary: str | None


def thought_keys(chat_id: int | str | None, message_id: int | str | None, clean_text: str) -> EntryKeys:
    """Return the keys of one message of one chat. The hash of its text is a hint; a message without text has none.

    The ids `5` and `" 5 "` are the same.
    """
    primary = f"tg:{whole_number('source.chat_id', chat_id)}:{whole_number('source.message_id', message_id)}"
    return EntryKeys(TELEGRAM_THOUGHT, primary, sha256_hex(clean_text) if clean_text else None)


def link_keys(url: str) -> EntryKeys:
    """Return the keys of one link: its canonical URL, and the hash of that without tracking parameters."""
    address = canonical(url)
    if address is None:
        raise refused("url", "is not a valid http or https URL")
    return EntryKeys(TELEGRAM_LINK, stored(address), sha256_hex(without_tracking(address)))


def newsletter_keys(
    message_id: str | None, from_addr: str | None, subject: str | None, date: str | int | None
) -> EntryKeys:
    """Return the keys of one newsletter issue: its Message-ID, and the hash of sender, subject and day.

    If one of these three is missing, the issue has no secondary key.
    """
    primary = _message_id(message_id)
    parts = (_from_addr(from_addr), subject_base(subject or ""), date_bucket(date))
    secondary = sha256_hex("|".join(map(str, parts))) if all(parts) else None
    if primary is None and secondary is None:
        lacks = [("source.message_id", "is missing")]
        for name, sent, part, why in zip(_PARTS, (from_addr, subject, date), parts, _UNREADABLE, strict=True):
            if not part:
                lacks.append((name, "is missing" if sent is None or not str(sent).strip() else why))
        listed = ", ".join(f"{name} {why}" for name, why in lacks)
        raise InvalidInput(
            f"a newsletter needs a Message-ID, or a sender, a subject and a date: {listed}", tuple(lacks)
        )
    return EntryKeys(EMAIL_NEWSLETTER, None if primary is None else stored(primary), secondary)


def thread_keys(subject: str | None) -> EntryKeys:
    """Return the key of one conversation: all mails with the same base subject."""
    base = subject_base(subject or "")
    if not base:
        raise refused("subject", "is empty or has only prefixes and tags, so it cannot identify a thread")
    return EntryKeys(EMAIL_THREAD, sha256_hex(base), None)


def thread_v2_keys(
    references: Sequence[str], in_reply_to: str | None, message_id: str | None, subject: str | None
) -> EntryKeys:
    """Return the key of one conversation: all mails with the same root.

    The root is the first id in References, else In-Reply-To, else the mail's own Message-ID, as for the first mail of a
    thread. A program that truncates References, or sends only In-Reply-To in the middle of a thread, starts another
    one: one conversation may be split, but two are never merged. The subject is used only for a mail without any id.
    """
    for named in (*references, in_reply_to, message_id):
        root = _message_id(named)
        if root is not None:
            return EntryKeys(EMAIL_THREAD_V2, sha256_hex(root), None)
    base = thread_subject(subject or "")
    if not base:
        raise refused(
            "subject",
            "is empty or has only prefixes and tags, and the mail has no Message-ID, so nothing identifies the thread",
        )
    # No message id has this prefix, so a subject that looks like an id cannot equal one.
    return EntryKeys(EMAIL_THREAD_V2, sha256_hex(f"subject|{base}"), None)


def stored(key: str) -> str:
    """Return the stored form of a key: the key itself, or `sha256:` and its hash if it is over 512 bytes."""
    if len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX:
        return key
    return f"sha256:{sha256_hex(key)}"


def message_id(text: str | None) -> str | None:
    """Return the first id in the text, with angle brackets, which are added if missing; None without an id."""
    if text is None:
        return None
    for angle in _ANGLE.finditer(text):
        if inside := _without_blanks(angle[1]):
            return f"<{inside}>"
    inside = _without_blanks(text.replace("<", "").replace(">", ""))
    return f"<{inside}>" if inside else None


def from_addr(text: str | None) -> str | None:
    """Return the first address of a From line in lower case, without names and comments; None without an address."""
    if text is None or "@" not in text:
        return None
    found: str | None = None
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind in {"word", "quoted"}:
            found = found or _address(token[0])
        elif kind == "angle":
            # The text in angle brackets is the address, even if the name before it looks like one.
            if inside := from_addr(token["angle"]):
                return inside
        elif kind == "open":
            # An unclosed quote is a mistake: the text after it is parsed as usual.
            return found or from_addr(token["open"].replace('"', " "))
        elif kind == "end" and found:
            break
    return found


def _address(word: str) -> str | None:
    # Some programs put an address into single quotes.
    address = word.strip("'").lower()
    mailbox, _, host = address.rpartition("@")
    return address if mailbox and host else None


def _without_blanks(text: str) -> str:
    # An id has no white space; what is there comes from a folded header line.
    return "".join(text.split())


# Some functions above have parameters with these names.
_message_id = message_id
_from_addr = from_addr
