"""What a mail is, by its head: a newsletter, or correspondence. The first line that holds decides:

====  =========================================================  ==============
 1    the caller says it                                         what it says
 2    it has a list's header                                     newsletter
 3    its subject begins with `Re:`, or it has In-Reply-To or    correspondence
      References
 4    anything else, also a mail that was only forwarded         newsletter
====  =========================================================  ==============

So a discussion on a mailing list is a newsletter, each mail of it an entry, unless the caller says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onceward.core.text import refused
from onceward.ingest.email.header import Headers, first

NEWSLETTER = "newsletter"
THREAD = "correspondence_thread"
# What a caller may say. Correspondence is kept as threads, by either name.
SAID = {NEWSLETTER: NEWSLETTER, "correspondence": THREAD, THREAD: THREAD}

# The fields of RFC 2369, RFC 2919 and RFC 8058, and what lists had before them.
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

# `Re:` among what replying, forwarding and lists put in front of a subject; see `subject_base`.
_REPLY = re.compile(r"(?:\s++|fwd?\s*+[:\uff1a]|\[[^\[\]]*+\])*+re\s*+[:\uff1a]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    content_type: str
    reason: str


def kind_of(said: str | None, subject: str | None, headers: Headers) -> Kind:
    """The content type of the entry, and why; `InvalidInput` if the caller says what no mail is."""
    if said is not None:
        content_type = SAID.get(said.strip().lower())
        if content_type is None:
            raise refused("content_type", f"must be one of {', '.join(SAID)}")
        return Kind(content_type, f"It is {_NOUNS[content_type]} because content_type says so.")
    replied = _reply_sign(subject, headers)
    listed = _list_sign(headers)
    if listed is not None:
        but = "" if replied is None else f", which counts more than {replied}"
        return Kind(NEWSLETTER, f"It is a newsletter because it has {listed}{but}.")
    if replied is not None:
        return Kind(THREAD, f"It is correspondence because it has {replied}.")
    return Kind(NEWSLETTER, "It is a newsletter because nothing says that it is a reply.")


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
