"""Base subject of a mail, without the prefixes and tags of replies, forwards and mailing lists.

There are two versions, because a stored key must not change:

* `subject_base` (v1) removes leading `re:`, `fw:`, `fwd:` and `[tags]`, in any order, until nothing changes. White
  space is collapsed and letters are lower-case. White space may precede the colon, as in French, and the colon may be
  full-width. Nothing else is removed. A subject that has only tags becomes empty.
* `thread_subject` (v2) is the base subject of RFC 5256 with the prefixes of many languages. Differences from v1:

  ==========================  ====================  ===========
  subject                     v1                    v2
  ==========================  ====================  ===========
  `AW: Plan`                  `aw: plan`            `plan`
  `Re[2]: Plan`               `re[2]: plan`         `plan`
  `Plan (fwd)`                `plan (fwd)`          `plan`
  `[Fwd: Plan]`               empty                 `plan`
  `[List]`                    empty                 `[list]`
  `Straße` and `STRASSE`      two subjects          `strasse`
  one letter in two forms     two subjects          one (NFC)
  ==========================  ====================  ===========

Both take linear time and never raise. Applying either twice changes nothing.
"""

from __future__ import annotations

import re

from onceward.hub.ingest.normalize.text import clean

_TAG = r"\[[^\[\]]*+\]"
# Possessive quantifiers: the match never backtracks into a removed prefix.
_V1_LEADERS = re.compile(rf"(?:\s++|(?:re|fwd?)\s*+[:\uff1a]|{_TAG})*+", re.IGNORECASE)

# Prefixes that mail programs use for "reply" and "forward", by language, as found in real mail.
_PREFIXES = (
    ("re", "fw", "fwd"),  # English, and most programs in any language
    ("aw", "antw", "antwort", "wg"),  # German, Dutch
    ("doorst",),  # Dutch
    ("sv", "vb", "vs"),  # Swedish, Danish, Norwegian
    ("vs", "vl"),  # Finnish
    ("fs",),  # Icelandic
    ("rép", "tr"),  # French
    ("rv",),  # Spanish
    ("res", "enc"),  # Portuguese
    ("r", "rif", "i"),  # Italian
    ("odp", "pd"),  # Polish, Czech
    ("odg",),  # Croatian, Serbian, Slovene
    ("vá", "továbbítás"),  # Hungarian
    ("ynt", "ilt", "İlt"),  # Turkish
    ("bls", "trs"),  # Indonesian
    ("atb", "yml"),  # Welsh
    ("trả lời", "chuyển tiếp"),  # Vietnamese
    ("απ", "σχετ", "πρθ"),  # Greek
    ("на", "отв", "ответ", "пересл"),  # Russian
    ("השב", "הועבר"),  # Hebrew
    ("رد", "إعادة توجيه"),  # Arabic
    ("回复", "回覆", "答复", "答覆", "转发", "轉寄", "轉發"),  # Chinese
    ("返信", "転送"),  # Japanese
    ("회신", "답장", "전달"),  # Korean
)
_WORDS = "|".join(dict.fromkeys(re.escape(clean(word.casefold())) for words in _PREFIXES for word in words))
# `Re[2]:`, `Re(2):`, `Re^2:` and `Re*2:` count replies.
_COUNT = rf"(?:{_TAG}|\([0-9]++\)|[\^*][0-9]++)"
# The second colon is the full-width colon of Chinese and Japanese.
_V2_LEADERS = re.compile(rf"(?:\ |(?:{_WORDS})\ ?(?:{_COUNT}\ ?)?[:\uff1a]|(?P<tag>{_TAG}))*+")
_FORWARDED = "[fwd:"
_TRAILER = "(fwd)"


def subject_base(subject: str) -> str:
    """Return the base subject for v1 keys; empty if nothing is left."""
    leaders = _V1_LEADERS.match(subject)
    rest = subject[leaders.end() :] if leaders else subject
    return " ".join(rest.lower().split())


def thread_subject(subject: str) -> str:
    """Return the base subject for v2 keys; empty if nothing is left.

    As in RFC 5256, a tag stays if it is all that is left.
    """
    text = clean(subject.casefold())
    start, end = 0, len(text)
    while True:
        end = _without_trailers(text, start, end)
        start = _without_leaders(text, start, end)
        if not (text.startswith(_FORWARDED, start, end) and text.endswith("]", start, end)):
            return text[start:end]
        start, end = start + len(_FORWARDED), end - 1


# These use positions instead of substrings: a subject may have many nested forwards, and each would copy the rest.


def _without_trailers(text: str, start: int, end: int) -> int:
    while True:
        if text.endswith(_TRAILER, start, end):
            end -= len(_TRAILER)
        elif text.endswith(" ", start, end):
            end -= 1
        else:
            return end


def _without_leaders(text: str, start: int, end: int) -> int:
    leaders = _V2_LEADERS.match(text, start, end)
    if leaders is None:
        return start
    if leaders.end() == end and leaders.end("tag") == end:
        return leaders.start("tag")
    return leaders.end()
