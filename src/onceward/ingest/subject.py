"""What a mail's subject is about, without what replying, forwarding and lists put in front of it.

Two versions, because a key once stored must not change:

* `subject_base` (v1) takes off `re:`, `fw:`, `fwd:` and leading `[tags]`, in any order, until nothing changes; white
  space is collapsed and letters are lower-case. Nothing else: a subject that is all tags becomes empty.
* `thread_subject` (v2) is the base subject of RFC 5256 with the prefixes of many languages. It differs from v1 so:

  =========================  ====================  ===================
  subject                    v1                    v2
  =========================  ====================  ===================
  `AW: Plan`                 `aw: plan`            `plan`
  `Re : Plan`, `Re[2]: Plan` the same, lower-case  `plan`
  `RE：Plan` (wide colon)    `re：plan`            `plan`
  `Plan (fwd)`               `plan (fwd)`          `plan`
  `[Fwd: Plan]`              empty                 `plan`
  `[List]`                   empty                 `[list]`
  `Straße`, `STRASSE`        two subjects          `strasse`
  one letter, two encodings  two subjects          one (NFC)
  =========================  ====================  ===================

Both take time that grows with the length of the subject and no faster, never raise, and change nothing when repeated.
"""

from __future__ import annotations

import re

from onceward.ingest.text import clean

_TAG = r"\[[^\[\]]*+\]"
# Possessive: what was taken off is never given back, however the subject goes on.
_V1_LEADERS = re.compile(rf"(?:\s++|re:|fwd?:|{_TAG})*+", re.IGNORECASE)

# What mail programs write for "reply" and "forward", folded. Facts, by language, from what the programs send.
_PREFIXES = (
    "re fw fwd",  # English, and most programs everywhere
    "aw antw antwort wg",  # German
    "antw doorst",  # Dutch
    "sv vb vs",  # Swedish, Danish, Norwegian
    "vs vl",  # Finnish
    "fs",  # Icelandic
    "rép rep tr",  # French
    "rv",  # Spanish
    "res enc",  # Portuguese
    "r rif i",  # Italian
    "odp pd",  # Polish, Czech and Slovak
    "přep",  # Czech
    "odg pros",  # Croatian, Slovene, Serbian
    "vá tov továbbítás",  # Hungarian
    "ynt ilt i\u0307lt",  # Turkish, with and without the dot of its capital İ
    "bls trs",  # Indonesian
    "atb yml",  # Welsh
    "ats pers",  # Lithuanian
    "απ σχετ πρθ",  # Greek
    "отв ответ пересл",  # Russian
    "відп",  # Ukrainian
    "השב הועבר",  # Hebrew
    "رد",  # Arabic
    "回复 回覆 答复 转发 轉寄 轉發",  # Chinese
    "返信 転送",  # Japanese
    "회신 답장 전달",  # Korean
)
_WORDS = "|".join(
    sorted({re.escape(word) for words in _PREFIXES for word in words.split()}, key=lambda w: (-len(w), w))
)
# `Re[2]:`, `Re(2):`, `Re^2:` and `Re*2:` count replies.
_COUNT = rf"(?:{_TAG}|\([0-9]++\)|[\^*][0-9]++)"
_V2_LEADERS = re.compile(rf"(?:\ |(?:{_WORDS})\ ?{_COUNT}?\ ?[:：]|(?P<tag>{_TAG}))*+")
_FORWARDED = "[fwd:"
_TRAILER = "(fwd)"


def subject_base(subject: str) -> str:
    """The subject as the v1 keys have it; empty when nothing is left."""
    leaders = _V1_LEADERS.match(subject)
    rest = subject[leaders.end() :] if leaders else subject
    return " ".join(rest.lower().split())


def thread_subject(subject: str) -> str:
    """The subject as the v2 keys have it; empty when nothing is left. A tag that is all there is stays, as RFC 5256 has it."""
    text = clean(subject.casefold())
    start, end = 0, len(text)
    while True:
        end = _without_trailers(text, start, end)
        start = _without_leaders(text, start, end)
        if not (text.startswith(_FORWARDED, start, end) and text.endswith("]", start, end)):
            return text[start:end]
        start, end = start + len(_FORWARDED), end - 1


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
