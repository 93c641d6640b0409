"""The bodies of ingest's requests, as the OpenAPI document shows them.

The handlers read them by themselves: a bad item of a batch is its own failure and not that of the request, and what is
wrong with a message is said in the words of ingest.
"""

from __future__ import annotations

from typing import Any

from onceward.hub.constraints import NOT_BLANK, exactly_one, given, text
from onceward.ingest.columns import ASSIGNED, KEY_BYTES_MAX, POLICY_ID, PRIMARY, SECONDARY, TEXT_BYTES_MAX
from onceward.ingest.fields import NUMBER_MAX, NUMBER_MIN

MAIL = "message/rfc822"

_TEXT = {"type": ["string", "null"]}
_TIME = {"type": ["string", "integer", "null"], "description": "A time: ISO 8601, as in mail, or Unix seconds."}
_NUMBER = {
    "type": ["integer", "string", "null"],
    "minimum": NUMBER_MIN,
    "maximum": NUMBER_MAX,
    "description": "A whole number of 64 bits, or a text that spells one.",
}
_OBJECT = {"type": ["object", "null"]}
_SAID = {"content_type": _TEXT, "title": _TEXT, "metadata": _OBJECT}

_ENTRY: dict[str, Any] = {
    "title": "EntrySent",
    "description": "A normalized payload: the columns of an entry, with the name of its policy.",
    "type": "object",
    "required": ["source"],
    "additionalProperties": False,
    # A key or an id of a policy needs the policy's name, and so does everything of these two sources.
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
        POLICY_ID: {"type": ["integer", "null"], "description": "Only that of the named policy."},
        **{name: {"description": "Assigned by the database; not looked at."} for name in ASSIGNED},
        "reasons": {"description": "What a normalizer says of its decisions; not stored."},
        "strict": {"type": ["boolean", "null"], "description": "409 when the two keys are those of two entries."},
    },
}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


TELEGRAM = _json(
    {
        "title": "TelegramSent",
        "description": "This form, or a whole update of the Bot API, or the message of one.",
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
            **_SAID,
            "author": _TEXT,
        },
    }
)

EMAIL = _json(
    {
        "title": "EmailSent",
        "description": "The parts of a mail, or the whole of it as `raw_message` or `raw_message_base64`.",
        "type": "object",
        **exactly_one("raw_text", "raw_message", "raw_message_base64"),
        "properties": {
            "raw_text": _TEXT,
            "from": _TEXT,
            "subject": _TEXT,
            "source": {"type": "object", "properties": {"message_id": _TEXT, "date": _TIME}},
            "headers": {"type": ["object", "null"], "description": "Texts, or lists of texts, by name."},
            "raw_message": _TEXT,
            "raw_message_base64": _TEXT,
            "thread_policy": _TEXT,
            **_SAID,
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
        "items": {"type": "array", "items": _ENTRY, "description": "One that is not valid fails alone."},
        "strict": {"type": "boolean", "description": "For every item."},
    },
}
ENTRIES = _json({"anyOf": [_ENTRY, _BATCH]})
