"""HTTP routes of the hub, one module for each part. A handler parses, calls, and renders.

Not here: the code that routes share (`hub/web/`), and the functions they call (`hub/topics/`, `hub/tasks/` and so on).
Start with `topics.py`.
"""

__all__ = ["admin", "audit", "chat", "claims", "events", "ingest", "metrics", "pages", "settings", "tasks", "topics"]
