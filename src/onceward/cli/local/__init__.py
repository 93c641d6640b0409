"""Backends of the commands on data that is opened directly, whether or not the hub runs.

Not here: the commands (`cli/commands/`), and a running hub (`cli/remote/`).
Start with `tasks.py`.
"""

__all__ = ["audit", "claims", "ingest", "tasks"]
