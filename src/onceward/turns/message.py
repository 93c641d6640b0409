"""A message of a user: who sent it, where it belongs, and how long its channel waits for more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from onceward.core.canonical import Json
from onceward.core.fingerprint import Digest, fingerprint
from onceward.core.text import bytes_of, checked, compact, has_nul, refused
from onceward.errors import TooLarge

# Text and metadata together, see `message_bytes`.
MESSAGE_BYTES_MAX = 256 * 1024
# Together they fit in a session key, which with its tenant and a digest fits in a key of the ledger.
CUSTOMER_BYTES_MAX = 255
AGENT_BYTES_MAX = 64
CHANNEL_BYTES_MAX = 32
SESSION_BYTES_MAX = 512
MESSAGE_ID_BYTES_MAX = 255
KEY_BYTES_MAX = 255
PRINCIPAL_BYTES_MAX = 512

# People type in bursts where they chat, and not where they write letters or programs.
WINDOW_MILLISECONDS: Mapping[str, int] = {
    "web": 600,
    "whatsapp": 1200,
    "telegram": 1000,
    "sms": 800,
    "slack": 800,
    "teams": 800,
    "email": 0,
    "voice": 0,
    "api": 0,
}
# A shorter wait gathers nothing, a longer one is felt.
WINDOW_MILLISECONDS_MIN = 200
WINDOW_MILLISECONDS_MAX = 3000

# Metadata as it is stored when there is none.
NO_METADATA = "{}"

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_ESCAPES = str.maketrans({"%": "%25", ":": "%3A"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """What was sent. `ready()` checks it and fills in what was left out.

    principal        who is asking; nothing of one principal is ever seen by another
    message_id       the channel's own id: what has been stored under it is never stored again
    idempotency_key  the client's key; `fingerprint` says whether two requests under it are the same one, and is taken
                     of the message itself when none is given
    """

    content: str
    principal: str = "local"
    tenant_id: str = ""
    customer_id: str = ""
    agent_id: str = "default"
    channel: str = "api"
    message_id: str | None = None
    session_key: str | None = None
    idempotency_key: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    fingerprint: str | None = None

    def ready(self, bytes_max: int = MESSAGE_BYTES_MAX) -> UserMessage:
        """The same message with every default filled in; `InvalidInput` says which field cannot be accepted, `TooLarge`
        that it counts more than `bytes_max` bytes.
        """
        checked("principal", self.principal, PRINCIPAL_BYTES_MAX)
        tenant = self.tenant_id or self.principal
        if not _TENANT.fullmatch(tenant):
            raise refused("tenant_id", "is 1 to 64 of A-Z a-z 0-9 . _ -")
        customer = checked("customer_id", self.customer_id or self.principal, CUSTOMER_BYTES_MAX)
        checked("agent_id", self.agent_id, AGENT_BYTES_MAX)
        checked("channel", self.channel, CHANNEL_BYTES_MAX)
        size = message_bytes(self.content, compact(cast("Json", dict(self.metadata))))
        if size > bytes_max:
            raise TooLarge(
                f"a message is limited to {bytes_max} bytes of text and metadata (turns.max_message_bytes), got {size}"
            )
        checked("message", self.content, bytes_max)
        for name, text, limit in (
            ("message_id", self.message_id, MESSAGE_ID_BYTES_MAX),
            ("idempotency_key", self.idempotency_key, KEY_BYTES_MAX),
        ):
            if text is not None:
                checked(name, text, limit)
        metadata = cast("Json", dict(self.metadata))
        if has_nul(metadata):
            raise refused("metadata", "must not contain the character NUL")
        parts = (tenant, self.agent_id, customer, self.channel)
        session = self.session_key or ":".join(part.translate(_ESCAPES) for part in parts)
        return replace(
            self,
            tenant_id=tenant,
            customer_id=customer,
            session_key=checked("session_key", session, SESSION_BYTES_MAX),
            fingerprint=self.fingerprint or self._fingerprint(),
        )

    def _fingerprint(self) -> Digest:
        fields = ("content", "tenant_id", "customer_id", "agent_id", "channel", "message_id", "session_key")
        return Digest(fingerprint({**{name: getattr(self, name) for name in fields}, "metadata": dict(self.metadata)}))


def message_bytes(content: str, metadata: str) -> int:
    """What a message counts towards the limits: its text in UTF-8, and its metadata, if it has any, as the compact JSON
    in which it is stored.
    """
    return bytes_of("message", content) + (bytes_of("metadata", metadata) if metadata != NO_METADATA else 0)


def window_seconds(channel: str, milliseconds: Mapping[str, int] = WINDOW_MILLISECONDS) -> float:
    """How long a turn of this channel waits for more messages after each one; 0 for channels that do not wait."""
    wanted = milliseconds.get(channel, 0)
    return 0.0 if wanted <= 0 else min(max(wanted, WINDOW_MILLISECONDS_MIN), WINDOW_MILLISECONDS_MAX) / 1000
