"""Claims as the console shows them, called operations there: filter, search, timeline, the next retry, audited actions.

Not here: what an action does to a claim (`hub/claims/`), and the pages (`hub/console/pages/`).
Start with `search.py`.
"""

__all__ = ["actions", "curl", "provider", "query", "redaction", "retry", "search", "timeline"]
