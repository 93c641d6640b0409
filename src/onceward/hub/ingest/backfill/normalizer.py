"""Normalizer of an archive: calls the normalizers with the options that apply to all its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onceward.core.canonical import Json
from onceward.core.json_text import refused
from onceward.hub.ingest.email.normalize import normalize_email, normalize_mail
from onceward.hub.ingest.normalize.keys import EMAIL_THREAD
from onceward.hub.ingest.payload import Payload
from onceward.hub.ingest.telegram import normalize_exported, normalize_telegram

PAYLOAD, TELEGRAM, EMAIL = "payload", "telegram", "email"
FORMS = (PAYLOAD, TELEGRAM, EMAIL)

_PAYLOAD_FIELDS = frozenset({"source", "idempotency_policy_key", "capture_text", "clean_text"})
_EMAIL_FIELDS = frozenset({"raw_text", "raw_message", "raw_message_base64"})


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Options for all messages. `content_type` and `form` replace the detection for each message or line."""

    content_type: str | None = None
    form: str | None = None
    thread_policy: str = EMAIL_THREAD

    def mail(self, raw: bytes, received_at: str | None) -> Payload:
        return normalize_mail(
            raw,
            received_at=received_at,
            content_type=self.content_type,
            thread_policy=self.thread_policy,
            backfill=True,
        )

    def exported(self, chat: Mapping[str, Json], message: Mapping[str, Json]) -> Payload | None:
        return normalize_exported(chat, message, self.content_type)

    def line(self, value: Json) -> Payload:
        """Normalize a line of JSON: a ready payload, or a message of Telegram or mail in any form of the hub's API."""
        if not isinstance(value, dict):
            raise refused("line", "must be an object")
        form = self.form or form_of(value)
        if self.content_type is not None:
            value = {**value, "content_type": self.content_type}
        if form == PAYLOAD:
            return value
        return normalize_email(value, backfill=True) if form == EMAIL else normalize_telegram(value)


def form_of(value: Mapping[str, Json]) -> str:
    """Detect the form of an object by its fields."""
    if isinstance(value.get("source"), str) and not _PAYLOAD_FIELDS.isdisjoint(value):
        return PAYLOAD
    return TELEGRAM if _EMAIL_FIELDS.isdisjoint(value) else EMAIL
