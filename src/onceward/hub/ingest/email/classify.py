"""Classification of a mail by its headers: newsletter or correspondence. The first rule that applies decides:

====  =========================================================  ===================
 1    the caller sends `content_type`                            the caller's choice
 2    it has a mailing list header                               newsletter
 3    its subject begins with `Re:`, or it has In-Reply-To or    correspondence
      References
 4    anything else, also a mail that was only forwarded         newsletter
====  =========================================================  ===================

So each mail of a discussion on a mailing list is a newsletter with its own entry, unless the caller decides otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceward.core.json_text import refused
from onceward.hub.ingest.email.headers import Headers, first

NEWSLETTER = "newsletter"
THREAD = "correspondence_thread"
# Values that a caller may send. Correspondence is stored as threads under either name.
CONTENT_TYPES = {NEWSLETTER: NEWSLETTER, "correspondence": THREAD, THREAD: THREAD}

# The header fields of RFC 2369, RFC 2919 and RFC 8058, and older fields of mailing lists.
_LIST_FIELDS = {
    "list-id": "List-Id",
    "list-unsubscribe": "List-Unsubscribe",
    "list-unsubscribe-post": "List-Unsubscribe-Post",
    "list-post": "List-Post",
    "list-subscribe": "List-Subscribe",
    "list-archive": "List-Archive",
    "list-help": "List-Help",
    "list-owner": "List-Owner",
    "mailing-list": "Mailing-List",
    "x-mailing-list": "X-Mailing-List",
}
_LIST_PRECEDENCE = frozenset({"list", "bulk"})
_REPLY_FIELDS = {"in-reply-to": "In-Reply-To", "references": "References"}

# `Re:` among the prefixes and tags before a subject; see `subject_base`.
_REPLY = re.compile(r"(?:\s++|fwd?\s*+[:\uff1a]|\[[^\[\]]*+\])*+re\s*+[:\uff1a]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MailKind:
    content_type: str
    reason: str


def kind_of(declared: str | None, subject: str | None, headers: Headers) -> MailKind:
    """Return the content type of the entry and the reason; `InvalidInput` for an unknown `content_type`."""
    if declared is not None:
        content_type = CONTENT_TYPES.get(declared.strip().lower())
        if content_type is None:
            raise refused("content_type", f"must be one of {', '.join(CONTENT_TYPES)}")
        return MailKind(content_type, f"It is {_NOUNS[content_type]} because content_type says so.")
    replied = _reply_sign(subject, headers)
    listed = _list_sign(headers)
    if listed is not None:
        but = "" if replied is None else f", which takes precedence over {replied}"
        return MailKind(NEWSLETTER, f"It is a newsletter because it has {listed}{but}.")
    if replied is not None:
        return MailKind(THREAD, f"It is correspondence because it has {replied}.")
    return MailKind(NEWSLETTER, "It is a newsletter because nothing marks it as a reply.")


_NOUNS = {NEWSLETTER: "a newsletter", THREAD: "correspondence"}


def _list_sign(headers: Headers) -> str | None:
    for name, shown in _LIST_FIELDS.items():
        if name in headers and first(headers, name) is not None:
            return f"the header {shown}"
    precedence = (first(headers, "precedence") or "").lower()
    return f"the header Precedence: {precedence}" if precedence in _LIST_PRECEDENCE else None


def _reply_sign(subject: str | None, headers: Headers) -> str | None:
    if subject is not None and _REPLY.match(subject):
        return "a subject that begins with Re:"
    for name, shown in _REPLY_FIELDS.items():
        if first(headers, name) is not None:
            return f"the header {shown}"
    return None
