"""Kept responses, encrypted at rest: AES-GCM, with keys that can be changed while the service runs.

A sealed piece is

    version (1 byte) · key id (4 bytes) · nonce (12 bytes) · ciphertext, as long as the data · tag (16 bytes)

The tag covers all of it and what the piece is bound to, so that a piece cannot be changed, nor moved to another
entry, without being noticed. The key id says which key opens a piece; it is a hash and tells nothing of the key.

Version 2 binds the headers of a settled response to its status and its number of chunks, and each chunk to its number.
Version 1 did not, so that its status could be changed and its end be cut off: it is not read any more.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceward.errors import InvalidOption, OutcomeNotKept

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# The lengths of AES-128, AES-192 and AES-256.
KEY_BYTES = (16, 24, 32)

_VERSION = b"\x02"
_UNBOUND_VERSION = b"\x01"
# Enough to tell a handful of keys apart; two keys that share an id are both tried.
_ID_BYTES = 4
_NONCE_BYTES = 12
_TAG_BYTES = 16
_PREFIX_BYTES = len(_VERSION) + _ID_BYTES
# How much longer a sealed piece is than its data.
SEAL_BYTES = _PREFIX_BYTES + _NONCE_BYTES + _TAG_BYTES

# Tells sealed text from the JSON that stands in the same column without encryption, for programs and for operators.
_TEXT_MARK = "sealed:"

_GONE = "the request was carried out and will not run again"


class Seal:
    """Seals with the first key and opens with each: to change keys, put the new one in front and keep the old one behind
    it for as long as responses are kept. Safe to share between threads.

    Nonces are drawn at random, so one key is good for 2**32 pieces; change it before.
    """

    __slots__ = ("_ciphers", "_prefix", "_sealer", "_tampered")

    def __init__(self, keys: Sequence[bytes]) -> None:
        _check(keys)
        try:
            from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # only who encrypts needs the package
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise InvalidOption("encryption_keys= needs its package: pip install 'onceward[crypto]'") from error
        self._tampered = InvalidTag
        self._ciphers: dict[bytes, list[AESGCM]] = {}
        for key in keys:
            self._ciphers.setdefault(_id_of(key), []).append(AESGCM(key))
        self._sealer = AESGCM(keys[0])
        self._prefix = _VERSION + _id_of(keys[0])

    def seal(self, data: bytes, bound_to: bytes) -> bytes:
        """`SEAL_BYTES` longer than `data`, and never twice the same. It opens only with the same `bound_to`."""
        nonce = os.urandom(_NONCE_BYTES)
        return b"".join((self._prefix, nonce, self._sealer.encrypt(nonce, data, self._prefix + bound_to)))

    def open(self, sealed: bytes, bound_to: bytes) -> bytes:
        """What `seal` was given, or `OutcomeNotKept`."""
        if len(sealed) >= SEAL_BYTES and sealed.startswith(_UNBOUND_VERSION):
            raise OutcomeNotKept(
                f"the kept response is sealed in version 1, which does not protect its status and its length; {_GONE}. "
                "It was kept by an older Onceward, or was changed in the store"
            )
        if len(sealed) < SEAL_BYTES or not sealed.startswith(_VERSION):
            raise OutcomeNotKept(
                f"the kept response is not sealed in a form that this version of Onceward reads; {_GONE}. It was kept "
                "before encryption_keys= was set, by a newer Onceward, or was changed in the store"
            )
        key_id = sealed[len(_VERSION) : _PREFIX_BYTES]
        if key_id not in self._ciphers:
            raise OutcomeNotKept(
                f"the kept response is sealed with a key (id {key_id.hex()}) that is not among encryption_keys=; {_GONE}. "
                "Put that key back behind the first one, and keep it there for as long as responses are kept"
            )
        nonce, data = sealed[_PREFIX_BYTES : _PREFIX_BYTES + _NONCE_BYTES], sealed[_PREFIX_BYTES + _NONCE_BYTES :]
        associated = sealed[:_PREFIX_BYTES] + bound_to
        for cipher in self._ciphers[key_id]:
            try:
                return cipher.decrypt(nonce, data, associated)
            except self._tampered:
                continue
        raise OutcomeNotKept(
            f"the kept response does not open: it was changed in the store or belongs to another entry; {_GONE}. "
            "Find out who writes to the store, and restore the entry from a backup if its response is needed"
        )

    def seal_text(self, text: str, bound_to: bytes) -> str:
        """`seal` for a column of text."""
        return _TEXT_MARK + base64.b64encode(self.seal(text.encode(), bound_to)).decode("ascii")

    def open_text(self, sealed: str, bound_to: bytes) -> str:
        """What `seal_text` was given, or `OutcomeNotKept`."""
        return self.open(_piece(sealed), bound_to).decode()


def _piece(text: str) -> bytes:
    """What the text stands for; nothing, which no sealed piece is, for a text that `seal_text` never made."""
    try:
        return base64.b64decode(text.removeprefix(_TEXT_MARK), validate=True) if text.startswith(_TEXT_MARK) else b""
    except ValueError:
        return b""


def _check(keys: object) -> None:
    """Messages never show a key, not even one that is refused."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Sequence) or not keys:
        raise InvalidOption("encryption_keys= is a list of at least one key, even where there is only one: [key]")
    for number, key in enumerate(keys, start=1):
        if not isinstance(key, bytes):
            raise InvalidOption(
                f"encryption_keys= takes bytes, but key {number} is {type(key).__name__}; decode text first, for example "
                "with base64.b64decode"
            )
        if len(key) not in KEY_BYTES:
            raise InvalidOption(
                f"encryption_keys= takes keys of 16, 24 or 32 bytes, but key {number} has {len(key)}; os.urandom(32) "
                "makes a good one"
            )


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"onceward seal, key id:" + key).digest()[:_ID_BYTES]
