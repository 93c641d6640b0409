"""Encryption at rest: ciphertext decrypts only with its key, at its place, and unchanged."""

from __future__ import annotations

import os
from itertools import count

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import InvalidOption, OutcomeNotKept
from onceward.http.stored import encryption as encryption_module
from onceward.http.stored.encryption import OVERHEAD_BYTES, Encryption

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
PLACE = b"alice/key-1/body"

keys = st.sampled_from([16, 24, 32]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


@given(data=st.binary(max_size=5000), bound_to=st.binary(max_size=100), key=keys)
def test_encrypted_bytes_decrypt_unchanged(data: bytes, bound_to: bytes, key: bytes) -> None:
    encrypted = Encryption([key]).encrypt(data, bound_to)

    assert Encryption([key]).decrypt(encrypted, bound_to) == data
    assert len(encrypted) == len(data) + OVERHEAD_BYTES


@given(text=st.text(), bound_to=st.binary(max_size=100))
def test_encrypted_text_decrypts_unchanged_and_is_plain_ascii(text: str, bound_to: bytes) -> None:
    encrypted = Encryption([NEW]).encrypt_text(text, bound_to)

    assert Encryption([NEW]).decrypt_text(encrypted, bound_to) == text
    assert encrypted.isascii()
    assert encrypted.startswith("sealed:")


def test_a_long_body_decrypts_unchanged() -> None:
    body = os.urandom(3 * 1024 * 1024)

    assert Encryption([NEW]).decrypt(Encryption([NEW]).encrypt(body, PLACE), PLACE) == body


def test_the_plaintext_does_not_occur_in_the_ciphertext() -> None:
    encryption = Encryption([NEW])

    assert b"card number" not in encryption.encrypt(b"card number 4242", PLACE)
    assert encryption.encrypt(b"card number 4242", PLACE) != encryption.encrypt(b"card number 4242", PLACE)


def test_the_format_is_the_documented_one() -> None:
    encrypted = Encryption([NEW]).encrypt(b"data", PLACE)
    version, key_id, nonce, rest = encrypted[:1], encrypted[1:5], encrypted[5:17], encrypted[17:]

    assert version == b"\x02"
    assert AESGCM(NEW).decrypt(nonce, rest, version + key_id + PLACE) == b"data"


def test_ciphertext_of_version_1_is_refused_with_the_reason() -> None:
    """Version 1 does not protect the status and the length, even with the right key and in the right entry."""
    prefix = b"\x01" + encryption_module._id_of(NEW)
    nonce = bytes(12)
    encrypted = prefix + nonce + AESGCM(NEW).encrypt(nonce, b"data", prefix + PLACE)

    with pytest.raises(OutcomeNotKept, match="encrypted in version 1, which does not protect its status and length"):
        Encryption([NEW]).decrypt(encrypted, PLACE)


# Keys change.


def test_after_a_rotation_the_old_key_decrypts_and_the_new_one_encrypts() -> None:
    before = Encryption([OLD]).encrypt(b"kept before", PLACE)
    rotated = Encryption([NEW, OLD])

    assert rotated.decrypt(before, PLACE) == b"kept before"
    assert Encryption([NEW]).decrypt(rotated.encrypt(b"kept after", PLACE), PLACE) == b"kept after"


def test_a_key_removed_too_early_is_named_with_what_to_do() -> None:
    encrypted = Encryption([OLD]).encrypt(b"data", PLACE)

    with pytest.raises(OutcomeNotKept, match=f"id {encrypted[1:5].hex()}.*Put that key back") as raised:
        Encryption([NEW]).decrypt(encrypted, PLACE)
    assert OLD.hex() not in str(raised.value)


def test_two_keys_that_share_an_id_both_decrypt() -> None:
    first, second = keys_with_one_id()

    for sealer in (Encryption([first]), Encryption([second])):
        assert Encryption([first, second]).decrypt(sealer.encrypt(b"data", PLACE), PLACE) == b"data"
    with pytest.raises(OutcomeNotKept, match="cannot be decrypted"):
        Encryption([first]).decrypt(Encryption([second]).encrypt(b"data", PLACE), PLACE)


def keys_with_one_id() -> tuple[bytes, bytes]:
    """Return two keys with the same id. An id has four bytes, so some ten thousand keys are enough."""
    seen: dict[bytes, bytes] = {}
    for number in count():
        key = number.to_bytes(16, "big")
        other = seen.setdefault(encryption_module._id_of(key), key)
        if other != key:
            return other, key
    raise AssertionError


# Changed or moved ciphertext does not decrypt.


@given(data=st.binary(max_size=200), bit=st.integers(min_value=0))
def test_a_single_changed_bit_is_detected(data: bytes, bit: int) -> None:
    changed = bytearray(Encryption([NEW]).encrypt(data, PLACE))
    bit %= len(changed) * 8
    changed[bit // 8] ^= 1 << bit % 8

    with pytest.raises(OutcomeNotKept):
        Encryption([NEW, OLD]).decrypt(bytes(changed), PLACE)


def test_a_shortened_or_lengthened_ciphertext_is_detected() -> None:
    encryption = Encryption([NEW])
    encrypted = encryption.encrypt(b"some data", PLACE)

    for wrong in (
        *(encrypted[:length] for length in range(len(encrypted))),
        encrypted + b"\x00",
        encrypted + encrypted,
    ):
        with pytest.raises(OutcomeNotKept):
            encryption.decrypt(wrong, PLACE)


@given(place=st.binary(max_size=30), other=st.binary(max_size=30))
def test_a_ciphertext_moved_to_another_place_is_detected(place: bytes, other: bytes) -> None:
    encryption = Encryption([NEW])

    if place != other:
        with pytest.raises(OutcomeNotKept, match="belongs to another entry"):
            encryption.decrypt(encryption.encrypt(b"data", place), other)


def test_a_ciphertext_cannot_pass_for_one_of_another_key() -> None:
    """The tag covers the id, so a replaced id decrypts nothing even if both keys are known."""
    old, new = Encryption([OLD]).encrypt(b"data", PLACE), Encryption([NEW]).encrypt(b"data", PLACE)

    with pytest.raises(OutcomeNotKept, match="cannot be decrypted"):
        Encryption([NEW, OLD]).decrypt(old[:5] + new[5:], PLACE)


@given(st.binary(max_size=100))
def test_bytes_that_were_never_encrypted_do_not_decrypt(data: bytes) -> None:
    with pytest.raises(OutcomeNotKept):
        Encryption([NEW]).decrypt(data, PLACE)


@pytest.mark.parametrize("text", ["", "[]", '[["content-type","text/plain"]]', "sealed:", "sealed:%%%", "sealed:Äö"])
def test_text_that_was_never_encrypted_does_not_decrypt_and_says_why(text: str) -> None:
    with pytest.raises(OutcomeNotKept, match="before encryption_keys= was set"):
        Encryption([NEW]).decrypt_text(text, PLACE)


def test_encrypted_text_without_its_prefix_is_not_taken_for_encrypted() -> None:
    encrypted = Encryption([NEW]).encrypt_text("text", PLACE)

    with pytest.raises(OutcomeNotKept, match="is not encrypted in a form"):
        Encryption([NEW]).decrypt_text(encrypted.removeprefix("sealed:"), PLACE)


def test_changed_encrypted_text_is_detected() -> None:
    encrypted = Encryption([NEW]).encrypt_text("text", PLACE)
    changed = encrypted[:-6] + ("A" if encrypted[-6] != "A" else "B") + encrypted[-5:]

    with pytest.raises(OutcomeNotKept, match="cannot be decrypted"):
        Encryption([NEW]).decrypt_text(changed, PLACE)


# Keys that cannot work.


@pytest.mark.parametrize("wrong", [[], (), NEW, "text", None, 5, iter([NEW])])
def test_keys_are_a_list_of_at_least_one_key(wrong: object) -> None:
    with pytest.raises(InvalidOption, match="a list of at least one key"):
        Encryption(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 15, 17, 31, 33, 64])
def test_a_key_of_another_length_is_refused_without_being_shown(size: int) -> None:
    with pytest.raises(InvalidOption, match=f"16, 24 or 32 bytes, but key 2 has {size}") as raised:
        Encryption([NEW, b"S" * size])
    assert "SS" not in str(raised.value)


@pytest.mark.parametrize("key", ["secret-secret-secret-secret-secr", 17, None])
def test_a_key_that_is_not_bytes_is_refused_without_being_shown(key: object) -> None:
    with pytest.raises(InvalidOption, match="must be bytes, but key 1 is") as raised:
        Encryption([key])  # type: ignore[list-item]
    assert "secret-secret" not in str(raised.value)
