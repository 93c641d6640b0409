"""Encryption at rest: what is sealed opens with its key, in its place, unchanged, and in no other way."""

from __future__ import annotations

import os
from itertools import count

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import InvalidOption, OutcomeNotKept
from onceward.http import seal as seal_module
from onceward.http.seal import SEAL_BYTES, Seal

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PLACE = b"alice/key-1/body"

keys = st.sampled_from([16, 24, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


@given(data=st.binary(max_size=5000), bound_to=st.binary(max_size=100), key=keys)
def test_what_is_sealed_opens_as_it_was(data: bytes, bound_to: bytes, key: bytes) -> None:
    sealed = Seal([key]).seal(data, bound_to)

    assert Seal([key]).open(sealed, bound_to) == data
    assert len(sealed) == len(data) + SEAL_BYTES


@given(text=st.text(), bound_to=st.binary(max_size=100))
def test_sealed_text_opens_as_it_was_and_is_plain_ascii(text: str, bound_to: bytes) -> None:
    sealed = Seal([NEW]).seal_text(text, bound_to)

    assert Seal([NEW]).open_text(sealed, bound_to) == text
    assert sealed.isascii()
    assert sealed.startswith("sealed:")


def test_a_long_body_opens_as_it_was() -> None:
    body = os.urandom(3 * 1024 * 1024)

    assert Seal([NEW]).open(Seal([NEW]).seal(body, PLACE), PLACE) == body


def test_the_data_cannot_be_seen_in_what_is_sealed() -> None:
    seal = Seal([NEW])

    assert b"card number" not in seal.seal(b"card number 4242", PLACE)
    assert seal.seal(b"card number 4242", PLACE) != seal.seal(b"card number 4242", PLACE)


def test_the_form_is_the_documented_one() -> None:
    sealed = Seal([NEW]).seal(b"data", PLACE)
    version, key_id, nonce, rest = sealed[:1], sealed[1:5], sealed[5:17], sealed[17:]

    assert version == b"\x02"
    assert AESGCM(NEW).decrypt(nonce, rest, version + key_id + PLACE) == b"data"


def test_what_was_sealed_in_version_1_is_refused_with_the_reason() -> None:
    """It does not protect the status and the length, even with the right key and in its place."""
    prefix = b"\x01" + seal_module._id_of(NEW)
    nonce = bytes(12)
    sealed = prefix + nonce + AESGCM(NEW).encrypt(nonce, b"data", prefix + PLACE)

    with pytest.raises(OutcomeNotKept, match="sealed in version 1, which does not protect its status and its length"):
        Seal([NEW]).open(sealed, PLACE)


# Keys change.


def test_after_a_rotation_the_old_key_opens_and_the_new_one_seals() -> None:
    before = Seal([OLD]).seal(b"kept before", PLACE)
    rotated = Seal([NEW, OLD])

    assert rotated.open(before, PLACE) == b"kept before"
    assert Seal([NEW]).open(rotated.seal(b"kept after", PLACE), PLACE) == b"kept after"


def test_a_key_taken_out_too_early_is_named_with_what_to_do() -> None:
    sealed = Seal([OLD]).seal(b"data", PLACE)

    with pytest.raises(OutcomeNotKept, match=f"id {sealed[1:5].hex()}.*Put that key back") as raised:
        Seal([NEW]).open(sealed, PLACE)
    assert OLD.hex() not in str(raised.value)


def test_two_keys_that_share_an_id_both_open() -> None:
    first, second = keys_with_one_id()

    for sealer in (Seal([first]), Seal([second])):
        assert Seal([first, second]).open(sealer.seal(b"data", PLACE), PLACE) == b"data"
    with pytest.raises(OutcomeNotKept, match="does not open"):
        Seal([first]).open(Seal([second]).seal(b"data", PLACE), PLACE)


def keys_with_one_id() -> tuple[bytes, bytes]:
    """Four bytes are drawn twice after some ten thousand keys."""
    seen: dict[bytes, bytes] = {}
    for number in count():
        key = number.to_bytes(16, "big")
        other = seen.setdefault(seal_module._id_of(key), key)
        if other != key:
            return other, key
    raise AssertionError


# What was changed or moved does not open.


@given(data=st.binary(max_size=200), bit=st.integers(min_value=0))
def test_a_single_changed_bit_is_found(data: bytes, bit: int) -> None:
    changed = bytearray(Seal([NEW]).seal(data, PLACE))
    bit %= len(changed) * 8
    changed[bit // 8] ^= 1 << bit % 8

    with pytest.raises(OutcomeNotKept):
        Seal([NEW, OLD]).open(bytes(changed), PLACE)


def test_a_piece_that_was_cut_short_or_lengthened_is_found() -> None:
    seal = Seal([NEW])
    sealed = seal.seal(b"some data", PLACE)

    for wrong in (*(sealed[:length] for length in range(len(sealed))), sealed + b"\x00", sealed + sealed):
        with pytest.raises(OutcomeNotKept):
            seal.open(wrong, PLACE)


@given(place=st.binary(max_size=30), other=st.binary(max_size=30))
def test_a_piece_moved_to_another_place_is_found(place: bytes, other: bytes) -> None:
    seal = Seal([NEW])

    if place != other:
        with pytest.raises(OutcomeNotKept, match="belongs to another entry"):
            seal.open(seal.seal(b"data", place), other)


def test_a_piece_cannot_pass_for_one_of_another_key() -> None:
    """The id is covered by the tag, so an exchanged id opens nothing even where both keys are known."""
    old, new = Seal([OLD]).seal(b"data", PLACE), Seal([NEW]).seal(b"data", PLACE)

    with pytest.raises(OutcomeNotKept, match="does not open"):
        Seal([NEW, OLD]).open(old[:5] + new[5:], PLACE)


@given(st.binary(max_size=100))
def test_what_was_never_sealed_does_not_open(data: bytes) -> None:
    with pytest.raises(OutcomeNotKept):
        Seal([NEW]).open(data, PLACE)


@pytest.mark.parametrize("text", ["", "[]", '[["content-type","text/plain"]]', "sealed:", "sealed:%%%", "sealed:Äö"])
def test_text_that_was_never_sealed_does_not_open_and_says_why(text: str) -> None:
    with pytest.raises(OutcomeNotKept, match="before encryption_keys= was set"):
        Seal([NEW]).open_text(text, PLACE)


def test_sealed_text_without_its_mark_is_not_taken_for_sealed() -> None:
    sealed = Seal([NEW]).seal_text("text", PLACE)

    with pytest.raises(OutcomeNotKept, match="is not sealed"):
        Seal([NEW]).open_text(sealed.removeprefix("sealed:"), PLACE)


def test_sealed_text_that_was_changed_is_found() -> None:
    sealed = Seal([NEW]).seal_text("text", PLACE)
    changed = sealed[:-6] + ("A" if sealed[-6] != "A" else "B") + sealed[-5:]

    with pytest.raises(OutcomeNotKept, match="does not open"):
        Seal([NEW]).open_text(changed, PLACE)


# Keys that cannot work.


@pytest.mark.parametrize("wrong", [[], (), NEW, "text", None, 5, iter([NEW])])
def test_keys_are_a_list_of_at_least_one(wrong: object) -> None:
    with pytest.raises(InvalidOption, match="a list of at least one key"):
        Seal(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 15, 17, 31, 33, 64])
def test_a_key_of_another_length_is_refused_without_being_shown(size: int) -> None:
    with pytest.raises(InvalidOption, match=f"16, 24 or 32 bytes, but key 2 has {size}") as raised:
        Seal([NEW, b"S" * size])
    assert "SS" not in str(raised.value)


@pytest.mark.parametrize("key", ["secret-secret-secret-secret-secr", 17, None])
def test_a_key_that_is_not_bytes_is_refused_without_being_shown(key: object) -> None:
    with pytest.raises(InvalidOption, match="takes bytes, but key 1 is") as raised:
        Seal([key])  # type: ignore[list-item]
    assert "secret-secret" not in str(raised.value)
