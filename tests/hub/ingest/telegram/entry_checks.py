"""Checks of an entry's keys, and of the fields that a refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.errors import InvalidInput
from onceward.hub.ingest.telegram import normalize_telegram

COLUMNS = [
    "source", "content_type", "title", "author", "url", "url_canonical", "capture_text", "clean_text", "content_hash",
    "external_ref", "metadata", "idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary",
    "reasons",
]  # fmt: skip
METADATA = [
    "source_time", "sent_at", "chat_id", "chat_type", "chat_title", "message_id", "message_thread_id",
    "media_group_id", "sender_id", "forwarded_from", "reply_to_message_id", "via_bot", "media", "media_name",
    "media_text", "urls",
]  # fmt: skip


def keys(payload: dict[str, Any]) -> tuple[str, str, str | None]:
    names = ("idempotency_policy_key", "idempotency_key_primary", "idempotency_key_secondary")
    policy, primary, secondary = (payload[name] for name in names)
    return policy, primary, secondary


def refused_fields(sent: Any) -> set[str]:
    with pytest.raises(InvalidInput) as refusal:
        normalize_telegram(sent)
    assert all(why for _, why in refusal.value.fields)
    return {name for name, _ in refusal.value.fields}
