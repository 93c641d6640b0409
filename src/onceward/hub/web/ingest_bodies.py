"""Request bodies of the ingest routes, for the OpenAPI document.

The handlers parse the bodies themselves: a bad item of a batch fails alone, and ingest has its own validation messages.
"""

from __future__ import annotations

from typing import Any

from onceward.hub.ingest.entries.columns import ASSIGNED, KEY_BYTES_MAX, POLICY_ID, PRIMARY, SECONDARY, TEXT_BYTES_MAX
from onceward.hub.ingest.normalize.fields import NUMBER_MAX, NUMBER_MIN
from onceward.hub.web.constraints import NOT_BLANK, exactly_one, given, text

MAIL = "message/rfc822"

_TEXT = {"type": ["string", "null"]}
_TIME = {"type": ["string", "integer", "null"], "description": "A time: ISO 8601, an email date, or Unix seconds."}
_NUMBER = {
    "type": ["integer", "string", "null"],
    "minimum": NUMBER_MIN,
    "maximum": NUMBER_MAX,
    "description": "A 64-bit integer, as a number or as text.",
}
_OBJECT = {"type": ["object", "null"]}
_COMMON_FIELDS = {"content_type": _TEXT, "title": _TEXT, "metadata": _OBJECT}

_ENTRY: dict[str, Any] = {
    "title": "EntrySent",
    "description": "A normalized payload: the columns of an entry, and the key of its policy.",
    "type": "object",
    "required": ["source"],
    "additionalProperties": False,
    # The policy key is required with an idempotency key or a policy id, and for these two sources.
    "if": {
        "anyOf": [
            *(given(name) for name in (PRIMARY, SECONDARY, POLICY_ID)),
            {"properties": {"source": {"pattern": r"^\s*(?:[eE][mM][aA][iI][lL]|[tT][eE][lL][eE][gG][rR][aA][mM])"}}},
        ]
    },
    "then": given("idempotency_policy_key"),
    "allOf": [
        {
            "if": given("idempotency_policy_key"),
            "then": {"anyOf": [given(PRIMARY), given(SECONDARY)]},
        }
    ],
    "properties": {
        **{name: {**_TEXT, "maxLength": bytes_max} for name, bytes_max in TEXT_BYTES_MAX.items()},
        "source": {"type": "string", **text(TEXT_BYTES_MAX["source"])},
        "metadata": {**_OBJECT, "description": "At most 64 KiB of compact JSON."},
        "idempotency_policy_key": {**_TEXT, **NOT_BLANK},
        PRIMARY: {**_TEXT, **text(KEY_BYTES_MAX)},
        SECONDARY: {**_TEXT, **text(KEY_BYTES_MAX)},
        POLICY_ID: {"type": ["integer", "null"], "description": "If given, must be the id of the named policy."},
        **{name: {"description": "Assigned by the database; ignored."} for name in ASSIGNED},
        "reasons": {"description": "The normalizer's reasons for its decisions; not stored."},
        "strict": {"type": ["boolean", "null"], "description": "Respond 409 if the two keys belong to two entries."},
    },
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


TELEGRAM = _json(
    {
        "title": "TelegramSent",
        "description": "These fields, a Bot API update, or the message of an update.",
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "source": {
                "type": "object",
                "properties": {
                    "chat_id": _NUMBER,
                    "message_id": _NUMBER,
                    "url": _TEXT,
                    "date": _TIME,
                    "edit_date": _TIME,
                },
            },
            **_COMMON_FIELDS,
            "author": _TEXT,
        },
    }
)

EMAIL = _json(
    {
        "title": "EmailSent",
        "description": "The parts of an email, or the raw email as `raw_message` or `raw_message_base64`.",
        "type": "object",
        **exactly_one("raw_text", "raw_message", "raw_message_base64"),
        "properties": {
            "raw_text": _TEXT,
            "from": _TEXT,
            "subject": _TEXT,
            "source": {"type": "object", "properties": {"message_id": _TEXT, "date": _TIME}},
            "headers": {
                "type": ["object", "null"],
                "description": "For each header name, a string or a list of strings.",
            },
            "raw_message": _TEXT,
            "raw_message_base64": _TEXT,
            "thread_policy": _TEXT,
            **_COMMON_FIELDS,
        },
    }
)
EMAIL["content"][MAIL] = {"schema": {"type": "string", "contentMediaType": MAIL}}

_BATCH = {
    "title": "EntriesSent",
    "type": "object",
    "required": ["items"],
    "additionalProperties": False,
    "properties": {
        "items": {"type": "array", "items": _ENTRY, "description": "If one item is invalid, only that item fails."},
        "strict": {"type": "boolean", "description": "Applies to every item."},
    },
}
ENTRIES = _json({"anyOf": [_ENTRY, _BATCH]})
