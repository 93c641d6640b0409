"""The pages of ingest: entries and their counters, one policy, and the preview of a pasted message.

Not here: how messages are normalized and inserted (`hub/ingest/`).
Start with `entries.py`.
"""

__all__ = ["entries", "message", "policy"]
