"""Operations as the console shows them: filter, search, timeline, and what a retry would get.

Not here: the operations on claims themselves (`hub/claims/`), and the pages (`hub/console/pages/`).
Start with `search.py`; `retry.py` has the sentence about the next retry.
"""

__all__ = ["actions", "curl", "provider", "query", "redaction", "retry", "search", "timeline"]
