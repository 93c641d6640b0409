"""Subjects without the prefixes of replies, forwards and lists."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceward.hub.ingest.normalize import subject
from onceward.hub.ingest.normalize.subject import subject_base, thread_subject
from onceward.hub.ingest.normalize.text import clean

V1 = {
    "nothing": ("", ""),
    "plain": ("Weekly Update", "weekly update"),
    "reply": ("Re: Weekly Update", "weekly update"),
    "forward": ("Fw: Weekly Update", "weekly update"),
    "forward in three letters": ("FWD: Weekly Update", "weekly update"),
    "many": ("Re: RE: fwd: re:Fw: Weekly Update", "weekly update"),
    "a tag": ("[List] Weekly Update", "weekly update"),
    "tags and replies in any order": ("[a] Re: [b]Fwd:[c] re: Weekly Update", "weekly update"),
    "white space of any kind": ("\tRe:\r\n [a]\u00a0 Weekly\u3000 Update\n", "weekly update"),
    "white space in a tag": ("[a\r\n b] Weekly Update", "weekly update"),
    "an empty tag": ("[] Weekly Update", "weekly update"),
    "only a reply": ("Re: ", ""),
    "only tags": ("[a] [b]", ""),
    "a tag at the end stays": ("Weekly Update [a]", "weekly update [a]"),
    "a reply in the middle stays": ("Weekly re: Update", "weekly re: update"),
    "a tag inside a tag is not a tag": ("[a [b] c] Weekly", "[a [b] c] weekly"),
    "a tag without an end is not a tag": ("[a Weekly", "[a weekly"),
    "a blank before the colon": ("Re : Weekly", "weekly"),
    "blanks of any kind before the colon": ("[a] Fwd\u00a0: FW\u202f\t:RE  :  Weekly", "weekly"),
    "a wide colon": ("RE\uff1aFwd \uff1a Weekly", "weekly"),
    "a word between the reply and the colon": ("Re plan: Weekly", "re plan: weekly"),
    "a reply without a colon": ("Re Weekly", "re weekly"),
    "a counted reply": ("Re[2]: Weekly", "re[2]: weekly"),
    "another language": ("AW: Weekly", "aw: weekly"),
    "a word that begins so": ("Report: x", "report: x"),
    "two forms of one letter stay two": ("e\u0301", "e\u0301"),
    "the Greek S at an end": ("Re:ΟΔΟΣ", "οδος"),
    "the Greek S alone": ("Re:Σ", "\u03c3"),
    "NUL and half a character": ("Re: \0\ud800", "\0\ud800"),
}

# Where both versions agree, V1 has the expected result of v2, too.
DIFFER = {
    "another language": ("AW: Plan", "aw: plan", "plan"),
    "a counted reply": ("Re[2]: Plan", "re[2]: plan", "plan"),
    "the trailer of a forward": ("Plan (fwd) (FWD) ", "plan (fwd) (fwd)", "plan"),
    "a forward in brackets": ("[Fwd: Plan]", "", "plan"),
    "only a tag": ("[List]", "", "[list]"),
    "only tags": ("[a] Re: [b]", "", "[b]"),
    "letters that fold": ("STRASSE Straße", "strasse straße", "strasse strasse"),
    "two forms of one letter": ("e\u0301", "e\u0301", "\u00e9"),
}

V2 = {
    "nothing": ("", ""),
    "plain": ("Weekly  Update ", "weekly update"),
    "a tag before each reply": ("[a] Re: [b] AW: Weekly", "weekly"),
    "only a reply behind a tag": ("[a] Re:", ""),
    "only a trailer": ("(fwd)", ""),
    "a forward in brackets in a reply": ("Re: [Fwd: Re: Plan (fwd)] (fwd)", "plan"),
    "forwards in brackets in each other": ("[Fwd: [Fwd: [x] Plan]]", "plan"),
    "a forward in brackets with tags inside": ("[Fwd: Plan [b] c]", "plan [b] c"),
    "a forward in brackets before a text is a tag": ("[Fwd: a] Plan", "plan"),
    "an open forward in brackets": ("[Fwd: Plan", "[fwd: plan"),
    "an empty forward in brackets": ("[Fwd: ]", ""),
    "counts of other kinds": ("Re(3): Re^4: Re*5: Re [6] : Plan", "plan"),
    "a number behind a reply is not a count": ("RE2: syntax", "re2: syntax"),
    "a tag in the middle of a reply": ("Re [x]: Plan", "plan"),
    "a word that begins so": ("Trees: a plan", "trees: a plan"),
    "a word alone": ("Re", "re"),
    "time is not a reply": ("R2: D2", "r2: d2"),
    "a capital of Turkish": ("İLT: Plan", "plan"),
    "capitals of Greek": ("ΑΠ: ΣΧΕΤ: Plan", "plan"),
    "marks of French": ("RE\u0301P : Plan", "plan"),
    "a letter that folds into another form": ("J\u030c", "\u01f0"),
    "two words": ("Trả lời: Chuyển tiếp: Plan", "plan"),
    "Chinese": ("回复\uff1a转发: Plan", "plan"),
    "NUL and half a character": ("Re: \0\ud800", "\0\ud800"),
}

LANGUAGES = [
    *("RE", "Fw", "FWD", "AW", "WG", "Antw", "Antwort", "Doorst", "SV", "VB", "VS", "VL", "FS", "Rép", "TR", "RV"),
    *("RES", "ENC", "R", "RIF", "I", "Odp", "PD", "Odg", "Vá", "Továbbítás", "YNT", "ILT", "İLT", "BLS", "TRS", "ATB"),
    *(
        "YML",
        "Trả lời",
        "ΑΠ",
        "ΠΡΘ",
        "\u041d\u0410",
        "Отв",
        "Ответ",
        "השב",
        "הועבר",
        "رد",
        "إعادة توجيه",
        "回覆",
        "答复",
        "轉寄",
    ),
    *("返信", "転送", "회신", "답장", "전달"),
]

# Pieces of which tricky subjects are made; anything at all is tried beside them.
PIECES = (
    "re:",
    "Re",
    ":",
    " ",
    "fwd:",
    "FW:",
    "[",
    "]",
    "[x]",
    "[fwd:",
    "(fwd)",
    "aw:",
    "[2]",
    "\uff1a",
    "Σ",
    "x",
    "\u0301",
)
subjects = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join), st.text(st.characters()))


@pytest.mark.parametrize(("came", "base"), V1.values(), ids=V1)
def test_version_1_gives_these_base_subjects(came: str, base: str) -> None:
    assert subject_base(came) == base


@pytest.mark.parametrize(("came", "first", "second"), DIFFER.values(), ids=DIFFER)
def test_the_two_versions_differ_only_as_documented(came: str, first: str, second: str) -> None:
    assert (subject_base(came), thread_subject(came)) == (first, second)


@pytest.mark.parametrize(("came", "base"), V2.values(), ids=V2)
def test_version_2_gives_these_thread_subjects(came: str, base: str) -> None:
    assert thread_subject(came) == base


@pytest.mark.parametrize("prefix", LANGUAGES, ids=ascii)
def test_reply_and_forward_prefixes_of_many_languages_are_removed(prefix: str) -> None:
    colons = (":", " :", ": ", "\u00a0: ", "\uff1a", "[7]:")
    for word, colon in itertools.product((prefix, prefix.lower(), prefix.upper()), colons):
        assert thread_subject(f"{word}{colon}{word}{colon}Plan") == "plan"
        assert thread_subject(f"x{word}{colon}Plan") == clean(f"x{word}{colon}Plan".casefold())


@given(subjects)
@example("re:\0re:")
@example("Re:Σ")
def test_the_base_of_a_base_is_itself(came: str) -> None:
    base = subject_base(came)

    assert subject_base(base) == base
    assert subject_base(f"Fwd: [x] RE:\n{came}") == base


@given(subjects)
@example("\u0345\u0301")
@example("[fwd: [fwd:x]")
@example("J\u030c")
def test_the_thread_subject_of_a_thread_subject_is_itself(came: str) -> None:
    assert thread_subject(thread_subject(came)) == thread_subject(came)


def by_the_letter_of_the_rfc(came: str) -> str:
    """RFC 5256, section 2.1, step by step, without regard to speed."""
    words = subject._WORDS
    tag = r"\[[^\[\]]*\] ?"
    refwd = rf"(?:{words}) ?(?:{tag}|\([0-9]+\) ?|[\^*][0-9]+ ?)?[:\uff1a]"
    text = clean(came.casefold())
    while True:
        text = re.sub(r"(?:\(fwd\)| )+$", "", text)
        while True:
            before = text
            text = re.sub(rf"^(?:(?:{tag})*{refwd}| )", "", text)
            without_tag = re.sub(rf"^{tag}", "", text)
            text = without_tag or text
            if text == before:
                break
        if not (text.startswith("[fwd:") and text.endswith("]")):
            return text
        text = text[len("[fwd:") : -1]


@given(subjects)
@example("[a] [b] re:")
@example("[a][b]")
@example("[fwd:x]]")
@example("[fwd:[fwd: x]]]")
def test_the_thread_subject_is_the_one_of_rfc_5256(came: str) -> None:
    assert thread_subject(came) == by_the_letter_of_the_rfc(came)


# A beginning, what is repeated, how often, an end, and what either version makes of it; None: it stays as it is.
HUGE: dict[str, tuple[str, str, int, str, str | None, str | None]] = {
    "one word": ("", "a", 10_000_000, "", None, None),
    "replies": ("", "re: ", 1_000_000, "", "", ""),
    "tags": ("", "[x]", 1_000_000, "", "", "[x]"),
    "brackets": ("", "[", 10_000_000, "", None, None),
    "tags without an end": ("", "[x", 2_000_000, "", None, None),
    "blanks": ("", " ", 10_000_000, "", "", ""),
    "trailers": ("x", "(fwd)", 500_000, "", None, "x"),
    "forwards in each other": ("", "[fwd:", 100_000, "x" + "]" * 100_000, None, "x"),
    "replies without a colon": ("", "re [", 1_000_000, "x", None, None),
    "marks": ("a", "\u0301\u0316", 1_000_000, "", None, None),
}


@pytest.mark.parametrize(("begins", "again", "times", "ends", "first", "second"), HUGE.values(), ids=HUGE)
def test_a_huge_subject_takes_linear_time(
    begins: str, again: str, times: int, ends: str, first: str | None, second: str | None
) -> None:
    """In quadratic time, one of these would take hours."""
    came = begins + again * times + ends

    assert subject_base(came) == (came if first is None else first)
    assert thread_subject(came) == (came if second is None else second)
