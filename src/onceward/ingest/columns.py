"""The columns of an entry: in which order they are read and written, and what each may hold."""

from __future__ import annotations

# As the database assigns them.
ASSIGNED = ("entry_id", "id", "created_at", "updated_at")
# Text columns and how many bytes each may have. Only the two texts are large; the others are shown in lists and events.
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
# What a payload may have of an entry, and what an insert writes; the assigned ones come first in a row.
WRITTEN = (*CONTENT, POLICY_ID, PRIMARY, SECONDARY)
COLUMNS = (*ASSIGNED, *WRITTEN)

# Indexed, and part of events; the normalizers hash what is longer.
KEY_BYTES_MAX = 512
METADATA_BYTES_MAX = 64 * 1024

# Never updated, whatever a policy says.
IMMUTABLE = ("id", "entry_id", "created_at")
# What a policy's `update_fields` may name.
UPDATABLE = CONTENT
# What the statement of an update writes: whatever can be another value than before.
MUTABLE = ("updated_at", *CONTENT, PRIMARY, SECONDARY)
