"""Keys for providers: what they depend on, and which secret they use."""

from __future__ import annotations

import hashlib
import hmac
import uuid
from dataclasses import replace
from typing import Any

import pytest

from onceward.core.claim import SECRET_UNIT, Entry, Status
from onceward.errors import InvalidOption
from onceward.ledger.provider_key import Secrets, provider_key

PARTS: dict[str, Any] = {
    "secret": b"s" * 16,
    "namespace": "n",
    "scope": "call",
    "key": "charge:1",
    "created_at": 1_000,
    "not_done_count": 0,
    "provider": "bank",
    "step": "",
}
OLD, NEW = "the old secret 1", "the new secret 2"
ENTRY = Entry("n:call", "charge:1", "", Status.IN_PROGRESS, 1, 1, "", "", True, 0, None, 1_000)


def test_a_key_is_a_uuid_made_from_an_hmac_of_all_parts() -> None:
    found = provider_key(**PARTS)

    message = b"1:n4:call8:charge:14:10001:04:bank0:"
    digest = bytearray(hmac.new(b"s" * 16, message, hashlib.sha256).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    assert found == str(uuid.UUID(bytes=bytes(digest)))
    assert (len(found), uuid.UUID(found).version) == (36, 8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("secret", None),
        ("secret", b"t" * 16),
        ("namespace", "m"),
        ("scope", "tool"),
        ("key", "charge:2"),
        ("created_at", 1_001),
        ("not_done_count", 1),
        ("provider", "other"),
        ("step", "capture"),
    ],
)
def test_every_part_changes_the_key(name: str, value: object) -> None:
    assert provider_key(**{**PARTS, name: value}) != provider_key(**PARTS)


def test_parts_cannot_be_mistaken_for_each_other() -> None:
    keys = {
        provider_key(**{**PARTS, "provider": one, "step": two}) for one, two in (("ab", "c"), ("a", "bc"), ("abc", ""))
    }

    assert len(keys) == 3


def begun(secrets: Secrets) -> Entry:
    return replace(ENTRY, key_basis=secrets.key_basis)


def test_an_entry_keeps_the_secret_with_which_it_was_begun() -> None:
    before, rotated = Secrets.of(OLD, None), Secrets.of(None, [NEW, OLD])
    old, new = begun(before), begun(rotated)
    counted = replace(old, key_basis=old.key_basis + 1)

    def key(secrets: Secrets, entry: Entry) -> str:
        return secrets.key_for("n", entry, entry.not_done_count, "bank", "")

    assert key(before, old) == key(rotated, old) != key(rotated, new)
    assert key(rotated, counted) == key(before, counted) != key(before, old)
    assert (counted.not_done_count, counted.secret_id) == (1, old.secret_id)


def test_an_entry_begun_without_a_secret_stays_without_one() -> None:
    entry = begun(Secrets.of(None, None))
    keys = {secrets.key_for("n", entry, 0, "bank", "") for secrets in (Secrets.of(None, None), Secrets.of(NEW, None))}

    assert keys == {provider_key(**{**PARTS, "secret": None})}
    assert entry.key_basis == 0


@pytest.mark.parametrize("left", [Secrets.of(None, None), Secrets.of(NEW, None)])
def test_a_secret_that_is_missing_is_reported_instead_of_another_key(left: Secrets) -> None:
    with pytest.raises(InvalidOption, match="put it back behind the first one"):
        left.key_for("n", begun(Secrets.of(OLD, None)), 0, "bank", "")


def test_ids_fit_above_the_count() -> None:
    for number in range(200):
        basis = Secrets.of(f"secret number {number:06}", None).key_basis
        assert 0 < basis <= 2**31 - SECRET_UNIT
        assert basis % SECRET_UNIT == 0


@pytest.mark.parametrize(
    ("secret", "secrets", "says"),
    [
        (OLD, [OLD], "not both"),
        ("short", None, "at least 16 bytes, but number 1 has 5"),
        (None, [], "at least one secret"),
        (None, OLD, "must be a list"),
        (None, [NEW, 7], "number 2 is int"),
    ],
)
def test_wrong_secrets_are_refused_without_showing_them(secret: Any, secrets: Any, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as refused:
        Secrets.of(secret, secrets)

    assert OLD not in str(refused.value)


def test_secrets_with_the_same_id_are_refused() -> None:
    first: dict[int, str] = {}
    for number in range(10_000):
        text = f"secret number {number:06}"
        twin = first.setdefault(Secrets.of(text, None).first, text)
        if twin != text:
            break

    with pytest.raises(InvalidOption, match="same id"):
        Secrets.of(None, [text, twin])
