"""Explanations in plain text: how the keys of an entry were made, and why an insert takes its action."""

from __future__ import annotations

from onceward.core.canonical import Json
from onceward.hub.ingest.entries.columns import PRIMARY, SECONDARY
from onceward.hub.ingest.entries.result import Inserted
from onceward.hub.ingest.normalize.dates import ZONE, date_bucket
from onceward.hub.ingest.normalize.subject import subject_base
from onceward.hub.ingest.normalize.tracking import VERSION
from onceward.hub.ingest.normalize.url import without_tracking
from onceward.hub.ingest.payload import Payload


def how_keyed(payload: Payload) -> list[str]:
    """Return one line for each key that says what it is, or what was hashed."""
    metadata = payload.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    match payload.get("idempotency_policy_key"):
        case "telegram_thought_v1":
            return [
                "primary: tg:{chat}:{message}",
                "secondary: sha256 of clean_text; only a hint, which at most one entry has",
            ]
        case "telegram_link_v1":
            canonical = _text(payload.get("url_canonical"))
            return [
                "primary: the canonical URL",
                f"secondary: sha256 of {without_tracking(canonical)} (tracking list {VERSION})",
            ]
        case "email_newsletter_v1":
            return [_primary_of_newsletter(known), _secondary_of_newsletter(known)]
        case "email_correspondence_thread_v1":
            return [f"primary: sha256 of the subject without prefixes, {subject_base(_text(payload.get('title')))!r}"]
        case "email_correspondence_thread_v2":
            return ["primary: sha256 of the first mail's Message-ID, from References, In-Reply-To or the mail itself"]
        case None if not (payload.get(PRIMARY) or payload.get(SECONDARY)):
            return ["the payload has no policy and no keys"]
        case _:
            return ["the keys were given in the payload"]


def _primary_of_newsletter(known: dict[str, Json]) -> str:
    if known.get("message_id"):
        return "primary: the Message-ID"
    return "primary: none, because the mail has no Message-ID"


def _secondary_of_newsletter(known: dict[str, Json]) -> str:
    day = date_bucket(_text(known.get("date")))
    if day is None:
        return "secondary: none, because the mail has no readable date"
    return f"secondary: sha256 of sender|subject_base|day, where the day is {day} in {ZONE}"


def what_follows(result: Inserted) -> str:
    """Return the reason for the action of a result."""
    if result.action == "inserted":
        if result.row is not None and result.row["idempotency_policy_id"] is None:
            return "the entry has no policy and no keys, so every copy of it is inserted"
        return "no stored entry of its policy has one of its keys"
    found = f"a stored entry has its {result.matched_on} key"
    if result.split_with:
        found += " (another entry has its secondary key and stays unchanged)"
    if result.action == "skipped":
        return f"{found}, and the policy skips duplicates"
    if result.stale:
        return f"{found}, and the stored version is newer"
    return f"{found}, and the policy updates it" + ("" if result.changed else ", but no value changes")


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
