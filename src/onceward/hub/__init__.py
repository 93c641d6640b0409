"""The hub: one HTTP server for topics, tasks, events, ingest and chat, on one data folder. Needs the extra `hub`.

Not here: the ledger, HTTP and tools, which work without it.
Start with `app.py`, which shows the order of the middlewares, and `state.py`, which holds the open resources. Modules
that several folders need are here, such as `db_threads.py`, in whose threads coroutines use the database.
"""

__all__ = ["app", "atomic_file", "db_threads", "file_lock", "openapi_examples", "state", "web_url"]
