"""The bodies of ingest's requests, as the OpenAPI document shows them.

The handlers read them by themselves: a bad item of a batch is its own failure and not that of the request, and what is
wrong with a message is said in the words of ingest.
"""

from __future__ import annotations

from typing import Any

from onceward.ingest.columns import ASSIGNED, PRIMARY, SECONDARY, TEXT_BYTES_MAX
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
    "properties": {
        **dict.fromkeys(TEXT_BYTES_MAX, _TEXT),
        "source": {"type": "string"},
        "metadata": _OBJECT,
        "idempotency_policy_key": _TEXT,
        PRIMARY: _TEXT,
        SECONDARY: _TEXT,
        "idempotency_policy_id": {"type": ["integer", "null"], "description": "Only that of the named policy."},
        **{name: {"description": "Assigned by the database; not looked at."} for name in ASSIGNED},
        "reasons": {"description": "What a normalizer says of its decisions; not stored."},
        "strict": {"type": "boolean", "description": "409 when the two keys are those of two entries."},
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
        "properties": {
            "raw_text": {"type": "string"},
            "from": _TEXT,
            "subject": _TEXT,
            "source": {"type": "object", "properties": {"message_id": _TEXT, "date": _TIME}},
            "headers": {"type": "object"},
            "raw_message": {"type": "string"},
            "raw_message_base64": {"type": "string"},
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
        "items": {"type": "array", "items": _ENTRY},
        "strict": {"type": "boolean", "description": "For every item."},
    },
}
ENTRIES = _json({"anyOf": [_ENTRY, _BATCH]})
