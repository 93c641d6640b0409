"""Commands on the data directly: the hub's functions on its database and files, whether or not it is running.

Not here: the same commands against a running hub (`cli/remote/`).
Start with `tasks.py`.
"""

__all__ = ["audit", "claims", "ingest", "tasks"]
