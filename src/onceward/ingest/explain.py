"""In words: how the keys of an entry came about, and why an insert does with it what it does."""

from __future__ import annotations

from onceward.core.canonical import Json
from onceward.ingest.columns import PRIMARY, SECONDARY
from onceward.ingest.date import ZONE, date_bucket
from onceward.ingest.inserted import Inserted
from onceward.ingest.payload import Payload
from onceward.ingest.subject import subject_base
from onceward.ingest.tracking import VERSION
from onceward.ingest.url import without_tracking


def how_keyed(payload: Payload) -> list[str]:
    """One sentence for each key, with what was hashed."""
    metadata = payload.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    match payload.get("idempotency_policy_key"):
        case "telegram_thought_v1":
            return [
                "primary: tg:{chat}:{message}",
                "secondary: sha256 of clean_text; a hint, of which one entry has each",
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
            return ["primary: sha256 of the first mail's Message-ID: References, In-Reply-To or its own"]
        case None if not (payload.get(PRIMARY) or payload.get(SECONDARY)):
            return ["it has no policy and no keys"]
        case _:
            return ["the keys came with the payload"]


def _primary_of_newsletter(known: dict[str, Json]) -> str:
    if known.get("message_id"):
        return "primary: the Message-ID"
    return "primary: none, because there is no Message-ID"


def _secondary_of_newsletter(known: dict[str, Json]) -> str:
    day = date_bucket(_text(known.get("date")))
    if day is None:
        return "secondary: none without a date"
    return f"secondary: sha256 of sender|subject_base|day, where the day is {day} in {ZONE}"


def what_follows(told: Inserted) -> str:
    """Why the action is what it is."""
    if told.action == "inserted":
        if told.row is not None and told.row["idempotency_policy_id"] is None:
            return "it has no policy and no keys, and is inserted plainly, each time that it comes"
        return "no entry of its policy has one of its keys"
    found = f"an entry has its {told.matched_on} key"
    if told.split_with:
        found += " (and another one its secondary key, which is left alone)"
    if told.action == "skipped":
        return f"{found}, and the policy skips duplicates"
    if told.stale:
        return f"{found}, and what is stored is newer"
    return f"{found}, and the policy updates it" + ("" if told.changed else "; nothing is different")


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
