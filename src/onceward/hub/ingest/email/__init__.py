"""Email ingest: parses mail in any encoding, classifies it, and gives it keys.

Not here: inserting the entry (`hub/ingest/entries/`).
Start with `normalize.py`.
"""

__all__ = ["normalize"]
