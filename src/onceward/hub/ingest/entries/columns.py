"""Columns of an entry: their order in rows, their size limits, and which of them may change."""

from __future__ import annotations

# Assigned on insert, not taken from the payload.
ASSIGNED = ("entry_id", "id", "created_at", "updated_at")
# Text columns and their maximum bytes. Only the two texts are large; the others are shown in lists and events.
TEXT_BYTES_MAX = {
    "source": 256,
    "content_type": 256,
    "title": 4 * 1024,
    "author": 4 * 1024,
    "url": 8 * 1024,
    "url_canonical": 8 * 1024,
    "capture_text": 1024 * 1024,
    "clean_text": 1024 * 1024,
    "content_hash": 512,
    "external_ref": 4 * 1024,
}
CONTENT = (*TEXT_BYTES_MAX, "metadata")
POLICY_ID, PRIMARY, SECONDARY = "idempotency_policy_id", "idempotency_key_primary", "idempotency_key_secondary"
# Columns of a payload, which an insert writes. In a row they follow the assigned columns.
WRITTEN = (*CONTENT, POLICY_ID, PRIMARY, SECONDARY)
COLUMNS = (*ASSIGNED, *WRITTEN)

# Keys are indexed and part of events. The normalizers store a longer key as its hash.
KEY_BYTES_MAX = 512
METADATA_BYTES_MAX = 64 * 1024

# Never updated, whatever a policy says.
IMMUTABLE = ("id", "entry_id", "created_at")
# Columns that a policy's `update_fields` may name.
UPDATABLE = CONTENT
# Columns that the UPDATE statement writes: all that can change.
MUTABLE = ("updated_at", *CONTENT, PRIMARY, SECONDARY)
