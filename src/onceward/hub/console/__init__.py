"""The console: pages for people, rendered on the server, under `/console/`.

Not here: the JSON API (`hub/routes/`), whose services the pages call, and the API reference (`hub/reference/`), whose
stylesheet and scripts `assets.py` serves, too.
Start with `routing.py`, which lists the pages; `visit.py` is what a page gets. The pages are in `pages/`.
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
