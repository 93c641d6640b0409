"""Limits and times of the intake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceward.hub.turns.model.message import MESSAGE_BYTES_MAX, WINDOW_MILLISECONDS

API_TTL_SECONDS = 300.0
CONTENT_WINDOW_SECONDS = 300.0
# A burst has a handful of messages. A larger one comes from a client that does not stop.
MESSAGES_MAX = 200
BYTES_MAX = 1024**2
QUEUED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Limits and times of the intake.

    Args:
        api_ttl_seconds: How long an idempotency key is remembered after its turn has completed.
        content_window_seconds: How long a message with neither key nor id is recognised by its content.
        auto_generate_keys: Whether messages are recognised by their content at all.
        checks: False disables duplicate checks by key and by content. A message_id is checked in any case.
        windows: The milliseconds that each channel waits for more messages. Values above 0 are limited to 200 to 3000.
        max_message_bytes: The largest size of one message, text and metadata together.
        max_messages: The largest number of messages of one turn.
        max_bytes: The largest size of all messages of one turn. A turn always accepts its first message.
        max_queued: The largest number of turns of one session that wait behind its oldest unfinished turn.
    """

    api_ttl_seconds: float = API_TTL_SECONDS
    content_window_seconds: float = CONTENT_WINDOW_SECONDS
    auto_generate_keys: bool = True
    checks: bool = True
    windows: Mapping[str, int] = field(default_factory=lambda: WINDOW_MILLISECONDS)
    max_message_bytes: int = MESSAGE_BYTES_MAX
    max_messages: int = MESSAGES_MAX
    max_bytes: int = BYTES_MAX
    max_queued: int = QUEUED_MAX
