"""A user's message: its sender, its session, and the time its channel waits for more messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from onceward.core.canonical import Json
from onceward.core.fingerprint import Digest, fingerprint
from onceward.core.json_text import bytes_of, checked, compact, has_nul, refused
from onceward.errors import TooLarge

# Text and metadata together, see `message_bytes`.
MESSAGE_BYTES_MAX = 256 * 1024
# Customer, agent and channel together fit in a session key. A session key with its tenant and a digest fits in a ledger
# key.
CUSTOMER_BYTES_MAX = 255
AGENT_BYTES_MAX = 64
CHANNEL_BYTES_MAX = 32
SESSION_BYTES_MAX = 512
MESSAGE_ID_BYTES_MAX = 255
KEY_BYTES_MAX = 255
PRINCIPAL_BYTES_MAX = 512

# People type in bursts when they chat. They do not in e-mail, and programs do not either.
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
# A shorter wait gathers nothing, and users notice a longer one.
WINDOW_MILLISECONDS_MIN = 200
WINDOW_MILLISECONDS_MAX = 3000

# The stored form of empty metadata.
NO_METADATA = "{}"

_TENANT = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_ESCAPES = str.maketrans({"%": "%25", ":": "%3A"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A message as its sender sent it. `ready()` validates it and fills in the defaults.

    Args:
        content: The text.
        principal: The caller. One principal never sees anything of another.
        tenant_id: The principal's tenant; the principal itself if empty.
        customer_id: The customer who wrote the message; the principal if empty.
        agent_id: The agent that the message is for.
        channel: The channel it came from. Some channels wait a moment for more messages, see `Intake.windows`.
        message_id: The channel's own id. A message id is stored only once in a session.
        session_key: The session; `{tenant}:{agent}:{customer}:{channel}` if None.
        idempotency_key: The client's key for this message.
        metadata: JSON values that belong to the message.
        fingerprint: Decides whether two requests with the same idempotency key are the same request. Computed from the
            message if None.
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
        """Return the same message, validated and with every default filled in.

        Args:
            bytes_max: The largest accepted size of text and metadata together, see `message_bytes`.

        Returns:
            A message whose tenant, customer, session key and fingerprint are set.

        Raises:
            errors.InvalidInput: A field cannot be accepted; `fields` names it.
            errors.TooLarge: The message has more than `bytes_max` bytes.
        """
        checked("principal", self.principal, PRINCIPAL_BYTES_MAX)
        tenant = self.tenant_id or self.principal
        if not _TENANT.fullmatch(tenant):
            raise refused("tenant_id", "must be 1 to 64 characters from A-Z a-z 0-9 . _ -")
        customer = checked("customer_id", self.customer_id or self.principal, CUSTOMER_BYTES_MAX)
        checked("agent_id", self.agent_id, AGENT_BYTES_MAX)
        checked("channel", self.channel, CHANNEL_BYTES_MAX)
        size = message_bytes(self.content, compact(cast("Json", dict(self.metadata))))
        if size > bytes_max:
            raise TooLarge(
                f"at most {bytes_max} bytes of text and metadata per message (turns.max_message_bytes), got {size}"
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
            raise refused("metadata", "must not contain a NUL character")
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
    """Return the size of a message that counts towards the limits.

    It is the size of the text in UTF-8 plus, unless the metadata is empty, that of the stored compact JSON.
    """
    return bytes_of("message", content) + (bytes_of("metadata", metadata) if metadata != NO_METADATA else 0)


def window_seconds(channel: str, milliseconds: Mapping[str, int] = WINDOW_MILLISECONDS) -> float:
    """Return how long a turn of this channel waits for more messages after each one; 0 if the channel does not wait."""
    wanted = milliseconds.get(channel, 0)
    return 0.0 if wanted <= 0 else min(max(wanted, WINDOW_MILLISECONDS_MIN), WINDOW_MILLISECONDS_MAX) / 1000
