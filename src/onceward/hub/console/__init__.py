"""The console: pages for people, rendered on the server, under `/console/`.

Not here: the JSON API (`hub/routes/`), whose services the pages call, and the API reference (`hub/reference/`).
Start with `routing.py`; `visit.py` is what a page gets, `pages/` has one module for each page.
"""

__all__ = [
    "assets",
    "attachments",
    "check_ring",
    "console",
    "counter_history",
    "forms",
    "login_limit",
    "recent_verdicts",
    "rendering",
    "routing",
    "sessions",
    "sparkline",
    "standalone",
    "visit",
    "visitors",
]
