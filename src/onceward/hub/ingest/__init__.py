"""Ingest: normalizes messages from outside, gives them keys, and inserts each once under its policy.

Not here: the routes (`hub/routes/ingest.py`).
Start with `entries/decision.py`, the decision table for entries; `email/` and `telegram/` are the sources.
"""

__all__ = ["explain", "newest", "payload"]
