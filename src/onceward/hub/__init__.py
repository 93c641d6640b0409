"""The hub: one HTTP server for topics, tasks, events, ingest and chat, with its console, backups and checks.

Not here: the ledger, HTTP and tools, which work without it. Needs the extra `hub`, except `client/`.
Start with `app.py`, which shows the order of the middlewares, and `state.py`, which holds the open resources.
"""

__all__ = ["app", "atomic_file", "file_lock", "security_headers", "state", "web_url"]
