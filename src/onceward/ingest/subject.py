"""What a mail's subject is about, without what replying, forwarding and lists put around it.

Two versions, because a key once stored must not change:

* `subject_base` (v1) takes off leading `re:`, `fw:`, `fwd:` and `[tags]`, in any order, until nothing changes; white
  space is collapsed and letters are lower-case. White space may stand before the colon, as French writes it, and the
  colon may be the wide one. Nothing else: a subject that is all tags becomes empty.
* `thread_subject` (v2) is the base subject of RFC 5256 with the prefixes of many languages. It differs from v1 so:

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

The time that both take grows with the length of the subject and no faster. Both never raise, and doing either twice
changes nothing.
"""

from __future__ import annotations

import re

from onceward.ingest.text import clean

_TAG = r"\[[^\[\]]*+\]"
# Possessive: what was taken off is never given back, however the subject goes on.
_V1_LEADERS = re.compile(rf"(?:\s++|(?:re|fwd?)\s*+[:\uff1a]|{_TAG})*+", re.IGNORECASE)

# What mail programs write for "reply" and "forward", by language. Facts: these are what they send.
_PREFIXES = (
    ("re", "fw", "fwd"),  # English, and most programs everywhere
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
# The second colon is the wide one of Chinese and Japanese.
_V2_LEADERS = re.compile(rf"(?:\ |(?:{_WORDS})\ ?(?:{_COUNT}\ ?)?[:\uff1a]|(?P<tag>{_TAG}))*+")
_FORWARDED = "[fwd:"
_TRAILER = "(fwd)"


def subject_base(subject: str) -> str:
    """The subject as the v1 keys have it; empty when nothing is left."""
    leaders = _V1_LEADERS.match(subject)
    rest = subject[leaders.end() :] if leaders else subject
    return " ".join(rest.lower().split())


def thread_subject(subject: str) -> str:
    """The subject as the v2 keys have it; empty when nothing is left.

    A tag that is all there is stays, as RFC 5256 has it.
    """
    text = clean(subject.casefold())
    start, end = 0, len(text)
    while True:
        end = _without_trailers(text, start, end)
        start = _without_leaders(text, start, end)
        if not (text.startswith(_FORWARDED, start, end) and text.endswith("]", start, end)):
            return text[start:end]
        start, end = start + len(_FORWARDED), end - 1


# Places instead of new texts: forwards inside forwards may be many, and each copy would be of all the rest.


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
