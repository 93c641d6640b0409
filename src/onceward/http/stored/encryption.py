"""Encryption of stored responses: AES-GCM, with keys that can be changed while the service runs.

An encrypted piece is

    version (1 byte) · key id (4 bytes) · nonce (12 bytes) · ciphertext, as long as the data · tag (16 bytes)

The tag covers the piece and its associated data, so that a changed piece, or one moved to another entry, is detected.
The key id selects the key for decryption. It is a hash and reveals nothing of the key.

Version 2 binds the headers of a settled response to its status and its number of chunks, and each chunk to its number.
Version 1 did not, so its status could be changed and its end could be cut off. It is no longer accepted.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceward.errors import InvalidOption, OutcomeNotKept, install_command

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# The lengths of AES-128, AES-192 and AES-256.
KEY_BYTES = (16, 24, 32)

_VERSION = b"\x02"
_UNBOUND_VERSION = b"\x01"
# Enough for a handful of keys. If two keys have the same id, both are tried.
_ID_BYTES = 4
_NONCE_BYTES = 12
_TAG_BYTES = 16
_PREFIX_BYTES = len(_VERSION) + _ID_BYTES
# The number of bytes that encryption adds to a piece.
OVERHEAD_BYTES = _PREFIX_BYTES + _NONCE_BYTES + _TAG_BYTES

# Distinguishes encrypted text from plain JSON in the same column, for programs and operators.
_TEXT_MARK = "sealed:"

_GONE = "the request was carried out and will not run again"


class Encryption:
    """Encryption with the first key, decryption with any. Safe to share between threads.

    To change keys, put the new key in front, and keep the old one behind it until the retention of its responses is
    over. Nonces are random, so one key is safe for 2**32 pieces: change the key before that.

    Raises:
        InvalidOption: `keys` is not a list of keys of 16, 24 or 32 bytes, or the package `cryptography` is missing.
    """

    __slots__ = ("_ciphers", "_first_cipher", "_invalid_tag", "_prefix")

    def __init__(self, keys: Sequence[bytes]) -> None:
        _check(keys)
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # needed only for encryption
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise InvalidOption(f"encryption_keys= needs cryptography: {install_command('crypto')}") from error
        self._invalid_tag = InvalidTag
        self._ciphers: dict[bytes, list[AESGCM]] = {}
        for key in keys:
            self._ciphers.setdefault(_id_of(key), []).append(AESGCM(key))
        self._first_cipher = AESGCM(keys[0])
        self._prefix = _VERSION + _id_of(keys[0])

    def encrypt(self, data: bytes, bound_to: bytes) -> bytes:
        """Encrypt data, which grows by `OVERHEAD_BYTES`. Decryption needs the same `bound_to`."""
        nonce = os.urandom(_NONCE_BYTES)
        return b"".join((self._prefix, nonce, self._first_cipher.encrypt(nonce, data, self._prefix + bound_to)))

    def decrypt(self, encrypted: bytes, bound_to: bytes) -> bytes:
        """Decrypt the result of `encrypt`. Raises `OutcomeNotKept`."""
        if len(encrypted) >= OVERHEAD_BYTES and encrypted.startswith(_UNBOUND_VERSION):
            raise OutcomeNotKept(
                f"the stored response is encrypted in version 1, which does not protect its status and length; {_GONE}."
                " It was stored by an older Onceward, or was changed in the store"
            )
        if len(encrypted) < OVERHEAD_BYTES or not encrypted.startswith(_VERSION):
            raise OutcomeNotKept(
                f"the stored response is not encrypted in a form that this version of Onceward reads; {_GONE}. It was "
                "stored before encryption_keys= was set, by a newer Onceward, or was changed in the store"
            )
        key_id = encrypted[len(_VERSION) : _PREFIX_BYTES]
        if key_id not in self._ciphers:
            raise OutcomeNotKept(
                f"the stored response is encrypted with a key (id {key_id.hex()}) that is not in encryption_keys=; "
                f"{_GONE}. Put that key back behind the first one, and keep it there until the retention of its "
                "responses is over"
            )
        nonce, data = encrypted[_PREFIX_BYTES : _PREFIX_BYTES + _NONCE_BYTES], encrypted[_PREFIX_BYTES + _NONCE_BYTES :]
        associated = encrypted[:_PREFIX_BYTES] + bound_to
        for cipher in self._ciphers[key_id]:
            try:
                return cipher.decrypt(nonce, data, associated)
            except self._invalid_tag:
                continue
        raise OutcomeNotKept(
            f"the stored response cannot be decrypted: it was changed in the store or belongs to another entry; "
            f"{_GONE}. Find out who writes to the store, and restore the entry from a backup if its response is needed"
        )

    def encrypt_text(self, text: str, bound_to: bytes) -> str:
        """Encrypt text for a text column."""
        return _TEXT_MARK + base64.b64encode(self.encrypt(text.encode(), bound_to)).decode("ascii")

    def decrypt_text(self, encrypted: str, bound_to: bytes) -> str:
        """Decrypt the result of `encrypt_text`. Raises `OutcomeNotKept`."""
        return self.decrypt(_piece(encrypted), bound_to).decode()


def _piece(text: str) -> bytes:
    """Decode the encrypted piece in a text; b"", which is never valid, if `encrypt_text` did not make the text."""
    try:
        return base64.b64decode(text.removeprefix(_TEXT_MARK), validate=True) if text.startswith(_TEXT_MARK) else b""
    except ValueError:
        return b""


def _check(keys: object) -> None:
    """Check the keys. Messages never show a key, not even a refused one."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence) or not keys:
        raise InvalidOption("encryption_keys= must be a list of at least one key, such as [key]")
    for number, key in enumerate(keys, start=1):
        if not isinstance(key, bytes):
            raise InvalidOption(
                f"encryption_keys= must be bytes, but key {number} is {type(key).__name__}; decode text first, for "
                "example with base64.b64decode"
            )
        if len(key) not in KEY_BYTES:
            raise InvalidOption(
                f"encryption_keys= must be keys of 16, 24 or 32 bytes, but key {number} has {len(key)}; generate one "
                "with os.urandom(32)"
            )


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"onceward seal, key id:" + key).digest()[:_ID_BYTES]
