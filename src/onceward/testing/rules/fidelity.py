"""Fidelity: a store returns every byte of an outcome and every character of a label unchanged."""

# ruff: noqa: S101  # These are tests.

from __future__ import annotations

import pytest

from onceward.core.claim import Verb
from onceward.core.key import LABEL_BYTES_MAX, NOTE_BYTES_MAX
from onceward.core.outcome import INLINE_BYTES_MAX, NOTHING, Outcome
from onceward.testing.caller import Caller, entry_of

OUTCOMES = {
    "nothing": NOTHING,
    "code-alone": Outcome(code=204),
    "code-zero": Outcome(code=0),
    "code-largest": Outcome(code=2**31 - 1),
    "headers-alone": Outcome(headers='{"a": "b"}'),
    "empty-headers": Outcome(headers=""),
    "odd-headers": Outcome(headers="x: y\r\n\t'\"\\ \N{SNOWMAN}\N{GRINNING FACE}"),
    "empty-body": Outcome(body=b""),
    "body-null": Outcome(body=b"null"),
    "every-byte": Outcome(body=bytes(range(256))),
    "not-text": Outcome(body=b"\xff\xfe\x00\x00\xc3\x28"),
    "nul-at-the-ends": Outcome(body=b"\x00x\x00"),
    "body-largest": Outcome(body=bytes(range(256)) * (INLINE_BYTES_MAX // 256)),
    "all": Outcome(200, "{}", b"{}", 0),
    "all-and-chunks": Outcome(200, "{}", b"{}", 3),
}
TEXTS = ["", " ", "x", "user@example.org", "\N{SNOWMAN} \N{GRINNING FACE}", "a'b\"c\\d\n", "\ufeff", "null"]


class FidelityRules:
    @pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
    def test_an_outcome_is_stored_byte_for_byte(self, outcome: Outcome, caller: Caller) -> None:
        """Rule 1."""
        for verb in (Verb.SETTLE, Verb.FAIL, Verb.UPHOLD, Verb.OVERTURN):
            version = caller.hold(verb).version
            if verb in (Verb.UPHOLD, Verb.OVERTURN):
                caller.move(Verb.DOUBT, version, verb)

            caller.move(verb, version, verb, outcome=outcome)

            there = caller.read(verb)
            assert there is not None
            assert there.outcome == outcome
            assert there.outcome.kept == outcome.kept

    def test_an_empty_body_is_not_the_same_as_none(self, caller: Caller) -> None:
        """Rule 1."""
        for key, body in (("empty", b""), ("none", None)):
            caller.move(Verb.SETTLE, caller.hold(key).version, key, outcome=Outcome(body=body))

        empty, none = caller.read("empty"), caller.read("none")
        assert empty is not None
        assert none is not None
        assert empty.outcome.body == b""
        assert none.outcome.body is None

    @pytest.mark.parametrize("text", [*TEXTS, "u" * LABEL_BYTES_MAX, "é" * (LABEL_BYTES_MAX // 2)])
    def test_labels_are_stored_unchanged(self, text: str, caller: Caller) -> None:
        """Rule 1."""
        entry = entry_of(caller.begin(user_id=text, endpoint=text, holder=text), applied=True)

        assert caller.read() == entry
        assert (entry.user_id, entry.endpoint, entry.holder) == (text, text, text)

    @pytest.mark.parametrize("text", [*TEXTS, "n" * NOTE_BYTES_MAX])
    def test_a_note_is_stored_unchanged(self, text: str, caller: Caller) -> None:
        """Rule 1."""
        for verb in (Verb.FAIL, Verb.DOUBT, Verb.SETTLE):
            entry = entry_of(caller.move(verb, caller.hold(verb).version, verb, note=text), applied=True)

            assert caller.read(verb) == entry
            assert entry.note == text

    @pytest.mark.parametrize("text", TEXTS[1:])
    def test_fingerprints_are_compared_in_full(self, text: str, caller: Caller) -> None:
        """Rule 2."""
        caller.begin(fingerprint=text)
        first = entry_of(caller.begin(fingerprint=text), applied=False)
        caller.move(Verb.FAIL, first.version)

        for other in (text + " ", text.upper() + "!", text[:-1] + "\N{SNOWMAN}\N{SNOWMAN}"):
            assert not caller.begin(fingerprint=other).applied
        assert caller.begin(fingerprint=text).applied
