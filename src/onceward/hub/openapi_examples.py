"""A valid request body for each operation of the hub, which the OpenAPI document shows.

A schema alone does not say which values make sense together. A test checks every example against its schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JSON = "application/json"
MAIL = "message/rfc822"

_TOPICS = "/api/v1/topics"
_ATTACHMENT = {"kind": "citation", "value_json": {"page": 17}, "dedupe_key": "page-17"}
_CLAIM = {"scope": "http:user:ada", "key": "pay-2026-0017", "version": 1}
_REASON = "The bank's journal shows it."
_CHAT = {"message": "Refund my order 12345", "customer_id": "grace", "session_key": "s-1"}
_RAW_MAIL = (
    "From: Ada <ada@example.com>\nTo: hub@example.com\nSubject: Hello\nMessage-ID: <1@example.com>\n"
    "Date: Wed, 18 Nov 2026 09:00:00 +0000\n\nHello!\n"
)

# By method and path, then by media type.
REQUEST_EXAMPLES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("post", _TOPICS): {JSON: {"title": "Order 17"}},
    ("post", f"{_TOPICS}/{{topic_id}}/messages"): {JSON: {"sender": "ada", "content": "Hello!"}},
    ("post", f"{_TOPICS}/{{topic_id}}/attachments"): {JSON: _ATTACHMENT},
    ("put", f"{_TOPICS}/{{topic_id}}/attachments"): {JSON: {**_ATTACHMENT, "value_json": {"page": 18}}},
    ("post", "/v1/tasks"): {JSON: {"title": "Paint the shed"}},
    ("post", "/v1/tasks/{task_id}/attachments/link"): {JSON: {"kind": "spec", "repo_path": "docs/shed.md"}},
    ("put", "/v1/attachments/{attachment_id}/labels"): {JSON: {"labels": ["green"]}},
    ("post", "/normalize/telegram"): {
        JSON: {"text": "Hello!", "source": {"chat_id": 1, "message_id": 1, "date": 1793961600}}
    },
    ("post", "/normalize/email"): {
        JSON: {"raw_text": "Hello!", "from": "ada@example.com", "subject": "Hello", "source": {"message_id": "<1@a>"}},
        MAIL: _RAW_MAIL,
    },
    ("post", "/db/insert"): {JSON: {"source": "rss", "title": "Hello", "capture_text": "Hello!"}},
    ("put", "/policies"): {
        JSON: {"policy_key": "rss_v1", "source": "rss", "content_type": "article", "conflict_action": "skip"}
    },
    ("put", "/test-mode"): {JSON: {"enabled": False}},
    ("post", "/chat"): {JSON: _CHAT},
    ("post", "/chat/stream"): {JSON: _CHAT},
    ("post", "/api/v1/claims/resolve"): {
        JSON: {
            **_CLAIM,
            "verdict": "committed",
            "reason": _REASON,
            "response": {"status": 201, "body": '{"charge": "ch_17"}'},
        }
    },
    ("post", "/api/v1/claims/abandon"): {JSON: {**_CLAIM, "reason": "Its process was killed."}},
    ("post", "/api/v1/claims/forget"): {JSON: {**_CLAIM, "reason": "It must run again."}},
    ("post", "/v1/admin/gc-blobs"): {JSON: {"dry_run": True}},
    ("post", "/v1/admin/fsck"): {JSON: {"quarantine": False}},
}


def add_request_examples(document: dict[str, Any]) -> None:
    """Add the examples to a document. An example that an operation already has stays."""
    for (method, path), examples in REQUEST_EXAMPLES.items():
        content = document.get("paths", {}).get(path, {}).get(method, {}).get("requestBody", {}).get("content", {})
        for media_type, example in examples.items():
            if media_type in content and not {"example", "examples"} & content[media_type].keys():
                content[media_type]["example"] = example
