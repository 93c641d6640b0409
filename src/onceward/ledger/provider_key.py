"""Keys for the idempotency of a provider, derived from the entry of an operation.

The key is the same for every attempt of an operation that may have reached the provider, so that the provider itself
drops the repetition. It changes after an attempt that certainly did nothing, because a provider may replay a recorded
failure for an old key.

With a secret, nobody else can guess a key. Secrets are rotated with `[new, old]`: an entry keeps the secret with which
it was begun. Its id is stored with the entry, as a part of the column `not_done_count` (see `Entry.key_basis`), which is
fixed by the first attempt. Without a secret, that part is 0.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Sequence

from onceward.core.claim import SECRET_UNIT, Entry
from onceward.core.record import record
from onceward.errors import InvalidOption

# As much entropy as a key of 128 bits can have.
SECRET_BYTES_MIN = 16
# Ids are 1 to this number: what is left of 31 bits above the count of attempts.
_ID_MAX = 2**31 // SECRET_UNIT - 1


@record(frozen=True, slots=True)
class Secrets:
    """The secrets of a ledger by their id. The first is used for new entries."""

    by_id: dict[int, bytes]
    first: int = 0

    @classmethod
    def of(cls, secret: str | bytes | None, secrets: Sequence[str | bytes] | None) -> Secrets:
        """Check the options `secret=` and `secrets=`, of which at most one may be given. Messages never show a secret.

        Raises:
            InvalidOption: If both are given, or one is not a text or bytes of at least 16 bytes.
        """
        if secret is not None and secrets is not None:
            raise InvalidOption("give secret= or secrets=, not both")
        if secrets is None:
            secrets = [] if secret is None else [secret]
        elif isinstance(secrets, str | bytes) or not isinstance(secrets, Sequence) or not secrets:
            raise InvalidOption("secrets= must be a list of at least one secret, the newest first")
        by_id: dict[int, bytes] = {}
        for number, one in enumerate(secrets, 1):
            if not isinstance(one, str | bytes):
                raise InvalidOption(f"a secret must be text or bytes, but number {number} is {type(one).__name__}")
            data = one.encode() if isinstance(one, str) else one
            if len(data) < SECRET_BYTES_MIN:
                raise InvalidOption(
                    f"a secret must have at least {SECRET_BYTES_MIN} bytes, but number {number} has {len(data)};"
                    " generate one with secrets.token_hex(32)"
                )
            if by_id.setdefault(_id_of(data), data) != data:
                raise InvalidOption(f"secret number {number} has the same id as another one; generate a new one")
        return cls(by_id, next(iter(by_id), 0))

    @property
    def key_basis(self) -> int:
        """The `key_basis` of a new entry."""
        return self.first * SECRET_UNIT

    def key_for(self, namespace: str, entry: Entry, not_done_count: int, provider: str, step: str) -> str:
        """Return the key of an entry for a provider, after this many attempts that did nothing.

        Raises:
            InvalidOption: If the secret with which the entry was begun is not known.
        """
        secret = self.by_id.get(entry.secret_id)
        if secret is None and entry.secret_id:
            raise InvalidOption(
                "this entry was begun with a secret that is not in secrets=; put it back behind the first one, and keep"
                " it there until its entries have expired"
            )
        scope = entry.scope.removeprefix(f"{namespace}:")
        return provider_key(secret, namespace, scope, entry.key, entry.created_at, not_done_count, provider, step)


def provider_key(
    secret: bytes | None,
    namespace: str,
    scope: str,
    key: str,
    created_at: int,
    not_done_count: int,
    provider: str,
    step: str,
) -> str:
    """Return a UUID of version 8 from HMAC-SHA256, or from SHA-256 without a secret."""
    words = (namespace, scope, key, str(created_at), str(not_done_count), provider, step)
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    # Each part is preceded by its length, so that no two lists of parts have the same bytes.
    message = b"".join(b"%d:%b" % (len(one), one) for one in encoded)
    digest = hashlib.sha256(message).digest() if secret is None else hmac.new(secret, message, hashlib.sha256).digest()
    bits = int.from_bytes(digest[:16], "big")
    bits = bits & ~(0xF000 << 64) & ~(0xC000 << 48) | 8 << 76 | 2 << 62
    return str(uuid.UUID(int=bits))


def _id_of(secret: bytes) -> int:
    digest = hashlib.sha256(b"onceward secret, id:" + secret).digest()
    return int.from_bytes(digest[:8], "big") % _ID_MAX + 1
