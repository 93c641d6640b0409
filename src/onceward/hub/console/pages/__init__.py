"""The pages of the console: each module reads what its template shows, and handles its forms.

Not here: the templates (`hub/console/templates/`), how operations are searched (`hub/console/claims/`), and the page of
an attachment (`hub/console/attachments/`).
Start with `overview.py`.
"""

__all__ = [
    "audit",
    "bulk",
    "events",
    "in_doubt",
    "login",
    "operation",
    "operations",
    "overview",
    "resolution",
    "storage",
    "tasks",
    "theme",
    "tokens",
    "topics",
    "turns",
]
