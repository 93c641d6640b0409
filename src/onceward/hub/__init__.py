"""The hub: one HTTP server for topics, tasks, events, ingest and chat, with its console, backups and checks.

Not here: the ledger, HTTP and tools, which work without it. Needs the extra `hub`, except `client/`.
Start with `app.py`, which shows the order of the middlewares, and `state.py`, which holds the open resources. Modules
that several folders need are here, such as `db_threads.py`, in whose threads coroutines use the database.
"""

__all__ = ["app", "atomic_file", "db_threads", "file_lock", "openapi_examples", "security_headers", "state", "web_url"]
