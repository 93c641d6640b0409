"""The idempotency keys of each policy. What cannot be keyed is refused: nothing is inserted that could come twice.

Who takes part in a conversation is never part of a key: people join and leave a thread that stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.core.text import refused
from onceward.errors import InvalidInput
from onceward.ingest.date import date_bucket
from onceward.ingest.fields import whole_number
from onceward.ingest.subject import subject_base, thread_subject
from onceward.ingest.text import sha256_hex
from onceward.ingest.url import canonical, without_tracking

TELEGRAM_THOUGHT = "telegram_thought_v1"
TELEGRAM_LINK = "telegram_link_v1"
EMAIL_NEWSLETTER = "email_newsletter_v1"
EMAIL_THREAD = "email_correspondence_thread_v1"
EMAIL_THREAD_V2 = "email_correspondence_thread_v2"

# An index entry must fit into a page of it; a key that is longer is stored as its hash.
KEY_BYTES_MAX = 512

_ANGLE = re.compile(r"<([^<>]*+)>")
# What a From line is made of. A quoted text is a name, or before an @ the mailbox of an address; one that is left open
# goes up to the end. Possessive and without overlaps, so that nothing is read again.
_NO_WORD = r"\s\"\\<>(),;:"
_TOKEN = re.compile(
    rf'"(?:[^"\\]|\\.)*+"(?P<quoted>@[^{_NO_WORD}]++)?|"(?P<open>.*+)|\([^()]*+\)|<(?P<angle>[^<>]*+)>'
    rf"|(?P<end>[,;])|(?P<word>[^{_NO_WORD}]++)",
    re.DOTALL,
)

# What a newsletter is known by without its Message-ID, and what is said of such a part that is there and tells nothing.
_PARTS = ("from", "subject", "source.date")
_UNREADABLE = ("has no address", "has nothing but prefixes and tags", "is no date that can be read")


@dataclass(frozen=True, slots=True)
class Keys:
    """What an insert is decided by; at least one of the two keys is there."""

    policy_key: str
    primary: str | None
    secondary: str | None


def thought_keys(chat_id: int | str | None, message_id: int | str | None, clean_text: str) -> Keys:
    """One message of one chat. The hash of its text is a hint; a message without text has none.

    The ids `5` and `" 5 "` are the same.
    """
    primary = f"tg:{whole_number('source.chat_id', chat_id)}:{whole_number('source.message_id', message_id)}"
    return Keys(TELEGRAM_THOUGHT, primary, sha256_hex(clean_text) if clean_text else None)


def link_keys(url: str) -> Keys:
    """One address: as a browser writes it, or as that is without tracking."""
    address = canonical(url)
    if address is None:
        raise refused("url", "is no http or https address")
    return Keys(TELEGRAM_LINK, stored(address), sha256_hex(without_tracking(address)))


def newsletter_keys(message_id: str | None, from_addr: str | None, subject: str | None, date: str | int | None) -> Keys:
    """One issue: its Message-ID, or sender, subject and day. Without one of these three it has no secondary key."""
    primary = _message_id(message_id)
    parts = (_from_addr(from_addr), subject_base(subject or ""), date_bucket(date))
    secondary = sha256_hex("|".join(map(str, parts))) if all(parts) else None
    if primary is None and secondary is None:
        lacks = [("source.message_id", "is missing")]
        for name, sent, part, why in zip(_PARTS, (from_addr, subject, date), parts, _UNREADABLE, strict=True):
            if not part:
                lacks.append((name, "is missing" if sent is None or not str(sent).strip() else why))
        told = ", ".join(f"{name} {why}" for name, why in lacks)
        raise InvalidInput(f"a newsletter needs a Message-ID, or a sender, a subject and a date: {told}", tuple(lacks))
    return Keys(EMAIL_NEWSLETTER, None if primary is None else stored(primary), secondary)


def thread_keys(subject: str | None) -> Keys:
    """One conversation: all mails whose subject has the same base."""
    base = subject_base(subject or "")
    if not base:
        raise refused("subject", "has nothing that a thread could be known by")
    return Keys(EMAIL_THREAD, sha256_hex(base), None)


def thread_v2_keys(
    references: Sequence[str], in_reply_to: str | None, message_id: str | None, subject: str | None
) -> Keys:
    """One conversation: all mails with the same root.

    The root is the first of References, else In-Reply-To, else the mail itself, as it is for the first mail of a thread.
    A program that cuts References, or gives only In-Reply-To in the middle of a thread, begins another one: what
    belongs together may be parted, but nothing is put together that does not. The subject counts only for a mail that
    names no id at all.
    """
    for named in (*references, in_reply_to, message_id):
        root = _message_id(named)
        if root is not None:
            return Keys(EMAIL_THREAD_V2, sha256_hex(root), None)
    base = thread_subject(subject or "")
    if not base:
        raise refused("subject", "has nothing that a thread could be known by, and there is no Message-ID")
    # No id begins so: a subject that looks like one is not one.
    return Keys(EMAIL_THREAD_V2, sha256_hex(f"subject|{base}"), None)


def stored(key: str) -> str:
    """The key as it is stored: itself, or `sha256:` and its hash when it is over 512 bytes."""
    if len(key.encode("utf-8", "surrogatepass")) <= KEY_BYTES_MAX:
        return key
    return f"sha256:{sha256_hex(key)}"


def message_id(text: str | None) -> str | None:
    """The first id of the text in angle brackets, which are added if they are not there. None if there is none."""
    if text is None:
        return None
    for angle in _ANGLE.finditer(text):
        if inside := _without_blanks(angle[1]):
            return f"<{inside}>"
    inside = _without_blanks(text.replace("<", "").replace(">", ""))
    return f"<{inside}>" if inside else None


def from_addr(text: str | None) -> str | None:
    """The first address of a From line in lower case, without names and comments. None if there is none."""
    if text is None or "@" not in text:
        return None
    found: str | None = None
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind in {"word", "quoted"}:
            found = found or _address(token[0])
        elif kind == "angle":
            # What is in brackets is the address, whatever the name before it looks like.
            if inside := from_addr(token["angle"]):
                return inside
        elif kind == "open":
            # Nobody meant a quote that is left open: what is behind it counts.
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
    # No id has any; they are left of a header line that was folded.
    return "".join(text.split())


# The functions above have parameters of these names.
_message_id = message_id
_from_addr = from_addr
